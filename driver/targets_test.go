package driver

import (
	"context"
	"slices"
	"sync"
	"testing"

	"github.com/hashicorp/nomad/plugins/drivers"

	"github.com/egress-proxies/egress/driver/registry"
)

// fakeTargets remembers what it is to publish.
type fakeTargets struct {
	mu     sync.Mutex // guards what follows
	config registry.TargetConfig
	list   []registry.Target
}

func (f *fakeTargets) Run(ctx context.Context) { <-ctx.Done() }

func (f *fakeTargets) Set(list []registry.Target, _ []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.list = list
}

func (f *fakeTargets) has(name string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.ContainsFunc(f.list, func(t registry.Target) bool { return t.Name == name && t.Ready })
}

func (p *parts) newTargets(config registry.TargetConfig) (targetRegistrar, error) {
	p.targets.mu.Lock()
	defer p.targets.mu.Unlock()
	p.targets.config = config
	return &p.targets, nil
}

func fingerprinted(t *testing.T, h *harness) *drivers.Fingerprint {
	t.Helper()
	results, err := h.Fingerprint(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return <-results
}

func TestTargetsArePublishedWithTheHealth(t *testing.T) {
	h := newHarness(t)
	fingerprinted(t, h)
	targets := &h.parts.targets
	eventually(t, "the target is published", func() bool { return targets.has("fake") })
	if c := targets.config; c.Service != "egress-target" || c.Cluster == "" || c.Home != h.parts.state {
		t.Errorf("service %q, cluster %q, home %q", c.Service, c.Cluster, c.Home)
	}
}

func TestTargetsCanBeKeptOutOfConsul(t *testing.T) {
	h := startHarness(t, newParts(t), testConfig+"\n")
	h.settings.config.Consul.TargetService = ""
	fingerprinted(t, h)
	if h.parts.targets.config.Cluster != "" {
		t.Error("targets are published all the same")
	}
}
