package e2e_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/egress-proxies/egress/e2e/cluster"
)

func TestConsulDownAndBack(t *testing.T) {
	f := own(t, cluster.Config{})
	f.fleet(map[string]string{"count": "2"})
	before := f.pids(f.passing(2))

	if err := f.Consul.Kill(); err != nil {
		t.Fatal(err)
	}
	// The proxies go on, and new ones start: they are registered later.
	f.fleet(map[string]string{"count": "3"})
	f.running(f.name, 3)
	if err := f.Consul.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	after := f.pids(f.passing(3))
	for id, pid := range before {
		if after[id] != pid {
			t.Errorf("proxy %s is process %d, was %d", id, after[id], pid)
		}
	}

	// A Consul that has forgotten everything is told again.
	if err := f.Consul.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(filepath.Join(f.Dir, "consul")); err != nil {
		t.Fatal(err)
	}
	if err := f.Consul.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	f.sameAgain(after)
}

// TestStopWhileConsulIsDown: the registration doesn't outlive the instance.
func TestStopWhileConsulIsDown(t *testing.T) {
	f := own(t, cluster.Config{})
	f.fleet(map[string]string{"count": "1"})
	f.passing(1)
	alloc := f.running(f.name, 1)[0].ID
	if err := f.Consul.Kill(); err != nil {
		t.Fatal(err)
	}
	if _, _, err := f.Nomad.Client.Jobs().Deregister(f.name, false, nil); err != nil {
		t.Fatal(err)
	}
	f.until("the allocation has ended", func(context.Context) error {
		if allocs := f.allocs(f.name); !terminal(allocs[0]) {
			return errNotYet(len(allocs), nil)
		}
		return nil
	})
	if err := f.Consul.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	f.until("the registration is gone", func(ctx context.Context) error { return f.traces(ctx, alloc) })
}
