package driver

import (
	"context"
	"sync"

	"github.com/hashicorp/nomad/plugins/drivers"
	pstructs "github.com/hashicorp/nomad/plugins/shared/structs"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/egress-proxies/egress/fingerprint"
)

// versionAttribute says that the driver is there, and which.
const versionAttribute = "driver.egress"

// healths are fingerprint's words in Nomad's.
var healths = map[fingerprint.Health]drivers.HealthState{
	fingerprint.Undetected: drivers.HealthStateUndetected,
	fingerprint.Unhealthy:  drivers.HealthStateUnhealthy,
	fingerprint.Healthy:    drivers.HealthStateHealthy,
}

// Fingerprint streams the health of the node's providers: at once, and then
// whenever it changes. It is where the driver's own work begins.
func (d *Driver) Fingerprint(ctx context.Context) (<-chan *drivers.Fingerprint, error) {
	ch := make(chan *drivers.Fingerprint)
	err := d.spawn(func() {
		defer close(ch)
		d.begin()
		d.fingerprint(ctx, ch)
	})
	return ch, err
}

func (d *Driver) fingerprint(ctx context.Context, ch chan<- *drivers.Fingerprint) {
	var checks sync.WaitGroup
	defer checks.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(d.ctx, cancel)()
	d.mu.Lock()
	monitor := d.monitor
	d.mu.Unlock()
	if monitor == nil {
		monitor = fingerprint.New(nil, fingerprint.Options{})
		checks.Go(func() { monitor.Run(ctx) })
	}
	for result := range monitor.Results(ctx) {
		select {
		case ch <- d.published(result):
		case <-ctx.Done():
			return
		}
	}
}

// published is a result as Nomad takes it. Every value is text: Nomad compares
// attributes as text or as numbers by what they look like.
func (d *Driver) published(result fingerprint.Result) *drivers.Fingerprint {
	attributes := make(map[string]*pstructs.Attribute, len(result.Attributes)+1)
	for name, value := range result.Attributes {
		attributes[name] = pstructs.NewStringAttribute(value)
	}
	if result.Health != fingerprint.Undetected {
		attributes[versionAttribute] = pstructs.NewStringAttribute(d.options.Version)
	}
	return &drivers.Fingerprint{
		Attributes: attributes, Health: healths[result.Health], HealthDescription: result.Description,
	}
}

// watchHealth begins to check the providers. It is called with the lock held.
func (d *Driver) watchHealth(s *settings) {
	sources := make([]fingerprint.Source, 0, len(s.places))
	for _, block := range s.config.Providers {
		place := s.places[block.Name]
		sources = append(sources, fingerprint.Source{Name: place.name, Type: place.kind, Provider: place.Provider})
	}
	monitor := fingerprint.New(sources, fingerprint.Options{
		Interval: s.config.Fingerprint.Interval, Timeout: s.config.Fingerprint.Timeout,
		FirstWait: d.timing.firstCheck, Logger: d.logger.Named("health"),
	})
	d.monitor = monitor
	d.wg.Go(func() { monitor.Run(d.ctx) })
	d.publishTargets(monitor, s)
	if s.config.MetricsAddress == "" {
		return
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(monitor, collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	d.wg.Go(func() { fingerprint.ServeMetrics(d.ctx, s.config.MetricsAddress, registry, d.logger.Named("metrics")) })
}
