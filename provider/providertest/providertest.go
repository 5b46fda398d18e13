// Package providertest is the contract suite that every provider passes.
package providertest

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/egress-proxies/egress/provider"
)

// Harness is one provider under test with the world that it works on.
type Harness struct {
	// New makes a provider of the cluster over the same world each time it is
	// called: a restarted plugin.
	New func(t *testing.T, cluster string) provider.Provider
	// Spec makes a spec that the provider can launch; the suite sets Name and
	// Labels.
	Spec func(t *testing.T) provider.Spec
	// Partials are the states in which a killed plugin can leave an instance.
	Partials []Partial
	// End makes a running instance end by itself (a crash); nil when the
	// provider can't know of it.
	End func(t *testing.T, instance provider.Instance)
	// Count counts every single thing (files, processes, domains, volumes) that
	// exists for the name, so that a leak shows.
	Count func(t *testing.T, name string) int
	// Faults are errors of the place and the class in which they must arrive.
	Faults []Fault
	// UnknownZone is a place that isn't configured; empty when the provider
	// has no places.
	UnknownZone string
	// NoAddress is true when the instances never get an address by themselves.
	NoAddress bool
	// Timeout of each wait; 0 is 30 seconds.
	Timeout time.Duration
}

// Partial is what a Create that was cut off leaves behind.
type Partial struct {
	// Name of the step after which it was cut off.
	Name string
	// Make leaves the world in that state.
	Make func(t *testing.T, spec provider.Spec)
	// Invisible is true when nothing of it exists yet in the place, so that
	// List has nothing to report.
	Invisible bool
}

// Fault is a failure of the place.
type Fault struct {
	// Name of the failure.
	Name string
	// Provider gives a provider for which Create fails.
	Provider func(t *testing.T) provider.Provider
	// Class is what Classify must say of the error of Create.
	Class error
}

const cluster = "contract"

// Run runs the suite. Each property is a subtest.
func Run(t *testing.T, h Harness) {
	if h.Timeout == 0 {
		h.Timeout = 30 * time.Second
	}
	t.Run("Unknown", h.unknown)
	t.Run("BadName", h.badName)
	t.Run("Lifecycle", h.lifecycle)
	t.Run("CreateIsIdempotent", h.idempotent)
	t.Run("ConcurrentCreates", h.concurrent)
	t.Run("Restart", h.restart)
	t.Run("OtherCluster", h.otherCluster)
	t.Run("StoppedLeftover", h.stopped)
	t.Run("Cancellation", h.cancellation)
	for _, partial := range h.Partials {
		t.Run("Partial/"+partial.Name, func(t *testing.T) { h.partial(t, partial) })
	}
	for _, fault := range h.Faults {
		t.Run("Fault/"+fault.Name, func(t *testing.T) { h.fault(t, fault) })
	}
}

// subject is the provider and a spec for one subtest.
func (h Harness) subject(t *testing.T) (context.Context, provider.Provider, provider.Spec) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 4*h.Timeout)
	t.Cleanup(cancel)
	spec := h.Spec(t)
	alloc := "a1b2c3d4-0000-4000-8000-000000000000"
	spec.Labels = provider.Labels{
		Cluster: cluster, Namespace: "default", Job: "job", Group: "group", Alloc: alloc, Task: t.Name(),
		Node: "node", CreatedAt: time.Now().UTC().Truncate(time.Second),
	}
	spec.Name = provider.Name(cluster, alloc, t.Name())
	p := h.New(t, cluster)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), h.Timeout)
		defer cancel()
		if err := p.Delete(ctx, provider.Ref{Name: spec.Name}); err != nil {
			t.Errorf("delete in the end: %v", err)
		}
		h.gone(t, ctx, p, spec)
	})
	return ctx, p, spec
}

// create makes the instance and waits until it runs.
func (h Harness) create(t *testing.T, ctx context.Context, p provider.Provider, spec provider.Spec) provider.Instance {
	t.Helper()
	created, err := p.Create(ctx, spec)
	if err != nil {
		t.Fatalf("create: %v", err)
	}
	if created.Name != spec.Name {
		t.Fatalf("created %q, want %q", created.Name, spec.Name)
	}
	return h.await(t, ctx, p, created.Ref, provider.Running)
}

// await waits until Get reports the state.
func (h Harness) await(t *testing.T, ctx context.Context, p provider.Provider, ref provider.Ref, state provider.State) provider.Instance {
	t.Helper()
	var last provider.Instance
	h.until(t, func() error {
		var err error
		last, err = p.Get(ctx, ref)
		if err != nil {
			return err
		}
		if last.State == state || (h.NoAddress && state == provider.Running && last.State == provider.Provisioning) {
			return nil
		}
		return errors.New("state is " + last.State.String() + ": " + last.Reason + ", want " + state.String())
	})
	return last
}

// until polls a condition until it gives nil.
func (h Harness) until(t *testing.T, condition func() error) {
	t.Helper()
	deadline := time.NewTimer(h.Timeout)
	defer deadline.Stop()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		err := condition()
		if err == nil {
			return
		}
		select {
		case <-tick.C:
		case <-deadline.C:
			t.Fatalf("after %s: %v", h.Timeout, err)
		}
	}
}

// listed gives the entries of List that have the name.
func listed(t *testing.T, ctx context.Context, p provider.Provider, name string) []provider.Instance {
	t.Helper()
	all, err := p.List(ctx)
	if err != nil {
		t.Fatalf("list: %v", err)
	}
	var ours []provider.Instance
	for _, instance := range all {
		if instance.Name == name {
			ours = append(ours, instance)
		}
	}
	return ours
}

// gone checks that nothing of the instance is left.
func (h Harness) gone(t *testing.T, ctx context.Context, p provider.Provider, spec provider.Spec) {
	t.Helper()
	if _, err := p.Get(ctx, provider.Ref{Name: spec.Name}); !errors.Is(err, provider.ErrNotFound) {
		t.Errorf("get after delete: %v, want ErrNotFound", err)
	}
	if left := listed(t, ctx, p, spec.Name); len(left) != 0 {
		t.Errorf("list after delete: %+v, want nothing", left)
	}
	if h.Count != nil {
		if n := h.Count(t, spec.Name); n != 0 {
			t.Errorf("%d things are left after delete, want 0", n)
		}
	}
}
