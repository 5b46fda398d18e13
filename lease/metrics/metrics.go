// Package metrics turns what the lease service does into Prometheus metrics.
package metrics

import (
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/egress-proxies/egress/lease"
)

// Metrics is a lease.Observer and the handler of /metrics.
type Metrics struct {
	registry *prometheus.Registry

	acquires        *prometheus.CounterVec
	acquireDuration *prometheus.HistogramVec
	waits           prometheus.Histogram
	ends            *prometheus.CounterVec
	held            prometheus.Histogram
	reports         *prometheus.CounterVec
	commits         *prometheus.CounterVec
	commitChanges   prometheus.Histogram
	commitDuration  prometheus.Histogram
}

// New makes the metrics, all at zero.
func New() *Metrics {
	fast := prometheus.ExponentialBuckets(0.0001, 2.5, 14) // 0.1 ms to 15 s
	slow := prometheus.ExponentialBuckets(0.5, 2.5, 12)    // 0.5 s to 3.3 h
	m := &Metrics{
		registry: prometheus.NewRegistry(),
		acquires: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "egress_lease_acquires_total", Help: "Acquires by outcome.",
		}, []string{"outcome"}),
		acquireDuration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "egress_lease_acquire_duration_seconds", Help: "Time of an acquire, waiting and storing included.", Buckets: fast,
		}, []string{"outcome"}),
		waits: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "egress_lease_wait_duration_seconds", Help: "Time that acquires queued.", Buckets: fast,
		}),
		ends: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "egress_lease_ends_total", Help: "Ends of leases by reason.",
		}, []string{"reason"}),
		held: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "egress_lease_held_seconds", Help: "Time that leases were held.", Buckets: slow,
		}),
		reports: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "egress_lease_reports_total", Help: "Reports by result.",
		}, []string{"result"}),
		commits: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "egress_lease_commits_total", Help: "Commits to the store by outcome.",
		}, []string{"outcome"}),
		commitChanges: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "egress_lease_commit_changes", Help: "Changes stored by one commit.", Buckets: prometheus.ExponentialBuckets(1, 2, 12),
		}),
		commitDuration: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "egress_lease_commit_duration_seconds", Help: "Time of a commit.", Buckets: fast,
		}),
	}
	m.registry.MustRegister(m.acquires, m.acquireDuration, m.waits, m.ends, m.held, m.reports, m.commits, m.commitChanges, m.commitDuration,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	for _, outcome := range []lease.Outcome{lease.Granted, lease.Refused, lease.Left, lease.Broken} {
		m.acquires.WithLabelValues(string(outcome))
		m.acquireDuration.WithLabelValues(string(outcome))
	}
	for _, reason := range []lease.EndReason{lease.Released, lease.Expired, lease.ProxyUnhealthy, lease.ProxyGone,
		lease.ProxyDraining, lease.ProxyCooling, lease.ProxyUnmatched, lease.ExitChanged} {
		m.ends.WithLabelValues(string(reason))
	}
	for _, result := range []lease.Result{lease.OK, lease.Blocked, lease.Failed} {
		m.reports.WithLabelValues(string(result))
	}
	m.commits.WithLabelValues("ok")
	m.commits.WithLabelValues("error")
	return m
}

// Handler answers /metrics.
func (m *Metrics) Handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{})
}

// Acquired counts an acquire.
func (m *Metrics) Acquired(outcome lease.Outcome, took time.Duration) {
	m.acquires.WithLabelValues(string(outcome)).Inc()
	m.acquireDuration.WithLabelValues(string(outcome)).Observe(took.Seconds())
}

// Waited notes the time in the queue.
func (m *Metrics) Waited(took time.Duration) { m.waits.Observe(took.Seconds()) }

// Ended counts the end of a lease.
func (m *Metrics) Ended(reason lease.EndReason, held time.Duration) {
	m.ends.WithLabelValues(string(reason)).Inc()
	m.held.Observe(held.Seconds())
}

// Reported counts a report.
func (m *Metrics) Reported(result lease.Result) { m.reports.WithLabelValues(string(result)).Inc() }

// Committed notes a commit.
func (m *Metrics) Committed(changes int, took time.Duration, err error) {
	if err != nil {
		m.commits.WithLabelValues("error").Inc()
		return
	}
	m.commits.WithLabelValues("ok").Inc()
	m.commitChanges.Observe(float64(changes))
	m.commitDuration.Observe(took.Seconds())
}
