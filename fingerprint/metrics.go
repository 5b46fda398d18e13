package fingerprint

import (
	"context"
	"errors"
	"net"
	"net/http"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// The metrics of each target. They show the latest verdict as it was given, in
// exact numbers: what is too unsteady for an attribute belongs here.
var (
	upMetric = prometheus.NewDesc("egress_target_up",
		"1 when an instance could be launched on the target, else 0.", targetLabels, nil)
	durationMetric = prometheus.NewDesc("egress_target_check_duration_seconds",
		"How long the latest check of the target took.", targetLabels, nil)
	timestampMetric = prometheus.NewDesc("egress_target_check_timestamp_seconds",
		"When the latest round of checks ended, in Unix time.", targetLabels, nil)
	poolMetric = prometheus.NewDesc("egress_target_pool_bytes",
		"Size of the target's storage, in the states capacity and available.", stateLabels, nil)
	memoryMetric = prometheus.NewDesc("egress_target_memory_bytes",
		"Size of the target's memory, in the states total and available.", stateLabels, nil)

	targetLabels = []string{"provider", "target"}
	stateLabels  = []string{"provider", "target", "state"}
)

// sizeMetrics are the facts that are metrics of sizes.
var sizeMetrics = []struct {
	metric *prometheus.Desc
	fact   string
	state  string
}{
	{poolMetric, "pool_capacity_bytes", "capacity"},
	{poolMetric, "pool_available_bytes", "available"},
	{memoryMetric, "memory_total_bytes", "total"},
	{memoryMetric, "memory_available_bytes", "available"},
}

// Describe implements prometheus.Collector.
func (m *Monitor) Describe(descs chan<- *prometheus.Desc) {
	for _, desc := range []*prometheus.Desc{upMetric, durationMetric, timestampMetric, poolMetric, memoryMetric} {
		descs <- desc
	}
}

// Collect implements prometheus.Collector: a target that is gone leaves nothing
// behind.
func (m *Monitor) Collect(metrics chan<- prometheus.Metric) {
	gauge := func(desc *prometheus.Desc, value float64, labels ...string) {
		metrics <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value, labels...)
	}
	for _, target := range m.Targets() {
		up := 0.0
		if target.Ready {
			up = 1
		}
		gauge(upMetric, up, target.Provider, target.Target)
		gauge(durationMetric, target.Latency.Seconds(), target.Provider, target.Target)
		gauge(timestampMetric, float64(target.At.UnixMilli())/1000, target.Provider, target.Target)
		for _, size := range sizeMetrics {
			if bytes, ok := bytesOf(target.Facts, size.fact); ok {
				gauge(size.metric, bytes, target.Provider, target.Target, size.state)
			}
		}
	}
}

// listenRetry is how often a taken port is tried again: the other agent of the
// host may end.
const listenRetry = 30 * time.Second

// ServeMetrics serves GET /metrics on address ("127.0.0.1:9464") until ctx ends.
// An address that is taken is told once and tried again: a second agent on the
// host, with the same configuration, must work all the same.
func ServeMetrics(ctx context.Context, address string, gatherer prometheus.Gatherer, logger hclog.Logger) {
	serveMetrics(ctx, address, gatherer, logger, listenRetry)
}

func serveMetrics(ctx context.Context, address string, gatherer prometheus.Gatherer, logger hclog.Logger, retry time.Duration) {
	logger = logger.With("address", address)
	var listener net.Listener
	for told := false; ; {
		var err error
		if listener, err = new(net.ListenConfig).Listen(ctx, "tcp", address); err == nil {
			break
		}
		if !told {
			logger.Warn("metrics are not served yet, trying on", "error", err)
			told = true
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(retry):
		}
	}
	logger.Info("metrics are served", "listener", listener.Addr().String())
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(gatherer, promhttp.HandlerOpts{}))
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second, WriteTimeout: 30 * time.Second}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		logger.Error("metrics are no longer served", "error", err)
	}
}
