package driver

import (
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/egress-proxies/egress/driver/probe"
	"github.com/egress-proxies/egress/driver/registry"
)

// fakeConsul is what is registered.
type fakeConsul struct {
	mu      sync.Mutex // guards what follows
	entries map[string]registration
	log     []string // "register NAME", "update NAME passing", …
	down    bool
	// verdicts are those that Register was given.
	verdicts []probe.Verdict
}

type registration struct {
	endpoint registry.Endpoint
	verdict  probe.Verdict
}

func (c *fakeConsul) Register(endpoint registry.Endpoint, verdict probe.Verdict) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.entries[endpoint.Name] = registration{endpoint, verdict}
	c.log = append(c.log, "register "+endpoint.Name)
	c.verdicts = append(c.verdicts, verdict)
	return nil
}

func (c *fakeConsul) Update(name string, verdict probe.Verdict) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if entry, ok := c.entries[name]; ok {
		c.entries[name] = registration{entry.endpoint, verdict}
		c.log = append(c.log, "update "+name+" "+verdict.Message)
	}
}

func (c *fakeConsul) Deregister(ctx context.Context, name string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.entries, name)
	c.log = append(c.log, "deregister "+name)
	if c.down {
		c.mu.Unlock()
		<-ctx.Done()
		c.mu.Lock()
		return ctx.Err()
	}
	return nil
}

func (c *fakeConsul) Reconcile(_ context.Context, owned ...string) (removed []string, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.log = append(c.log, "reconcile")
	if c.down {
		return nil, errors.New("connection refused")
	}
	for name := range c.entries {
		if !slices.Contains(owned, name) {
			delete(c.entries, name)
			removed = append(removed, name)
		}
	}
	return removed, nil
}

func (c *fakeConsul) Close(context.Context) error { return nil }

func (c *fakeConsul) names() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var names []string
	for name := range c.entries {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

func (c *fakeConsul) get(name string) (registration, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	entry, ok := c.entries[name]
	return entry, ok
}
