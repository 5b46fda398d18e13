package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/egress-proxies/egress/lease"
)

// Source is what the gauges are read from at each scrape.
type Source struct {
	// Service is the service.
	Service *lease.Service
	// CatalogAge is how old the pool may be; nil leaves the gauge out.
	CatalogAge func() time.Duration
}

// gauges reads the state of a service.
type gauges struct {
	source Source

	proxies, slots, leases, waiting, cooldowns, sessions, leader, ready, age, targets *prometheus.Desc
}

// Watch adds the gauges of a service.
func (m *Metrics) Watch(source Source) {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, labels, nil)
	}
	m.registry.MustRegister(&gauges{
		source:    source,
		proxies:   desc("egress_lease_proxies", "Proxies by provider and state.", "provider", "state"),
		slots:     desc("egress_lease_slots", "Leases that the healthy exits may carry at once."),
		leases:    desc("egress_lease_active", "Leases that are held."),
		waiting:   desc("egress_lease_waiting", "Acquires that wait for capacity."),
		cooldowns: desc("egress_lease_cooldowns", "Cooldowns by scope: exit for all targets, target for one.", "scope"),
		sessions:  desc("egress_lease_sessions", "Sessions that are remembered."),
		leader:    desc("egress_lease_leader", "1 while this process decides."),
		ready:     desc("egress_lease_ready", "1 when the pool is known."),
		targets:   desc("egress_lease_targets", "Targets of the drivers, as each node sees them, by provider and state.", "provider", "state"),
		age:       desc("egress_lease_catalog_age_seconds", "How old the pool may be: 0 while Consul answers."),
	})
}

// Describe sends the descriptions.
func (g *gauges) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{g.proxies, g.slots, g.leases, g.waiting, g.cooldowns, g.sessions, g.leader, g.ready, g.age, g.targets} {
		ch <- d
	}
}

// Collect sends the values.
func (g *gauges) Collect(ch chan<- prometheus.Metric) {
	send := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	stats := g.source.Service.Stats()
	for class, n := range stats.Proxies {
		send(g.proxies, float64(n), class.Provider, class.State.String())
	}
	send(g.slots, float64(stats.Slots))
	send(g.leases, float64(stats.Leases))
	send(g.waiting, float64(g.source.Service.Waiting()))
	send(g.cooldowns, float64(stats.CoolingExits), "exit")
	send(g.cooldowns, float64(stats.CoolingPairs), "target")
	send(g.sessions, float64(stats.Sessions))
	send(g.leader, truth(g.source.Service.Leading()))
	send(g.ready, truth(g.source.Service.Ready()))
	places, _ := g.source.Service.Places() // unknown is none
	counts := map[[2]string]int{}
	for _, p := range places {
		counts[[2]string{p.Provider, string(p.State)}]++
	}
	for labels, n := range counts {
		send(g.targets, float64(n), labels[0], labels[1])
	}
	if g.source.CatalogAge != nil {
		send(g.age, g.source.CatalogAge().Seconds())
	}
}

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
