package e2e_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/egress-proxies/egress/e2e/cluster"
	"github.com/egress-proxies/egress/e2e/fakegce/guest"
	"github.com/egress-proxies/egress/e2e/guard"
	"github.com/egress-proxies/egress/lease/api"
	"github.com/egress-proxies/egress/provider/gcp/computetest"
)

// computeEngine is a project whose machines are processes, and the block of the
// plugin's configuration for it.
func computeEngine(t *testing.T) (server *computetest.Server, block string) {
	t.Helper()
	binary, err := plugin()
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "egress-e2e-gce-")
	if err != nil {
		t.Fatal(err)
	}
	ending, err := guard.Start(dir, "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := ending.Close(); err != nil {
			t.Error(err)
		}
	})
	const project = "test-project-1"
	server, err = computetest.Start(computetest.Config{
		Project: project, Delay: 100 * time.Millisecond, PageSize: 1, Backend: &guest.Proxies{Binary: binary, Dir: dir},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Close)
	key := filepath.Join(dir, "key.json")
	if err := os.WriteFile(key, server.Credentials(), 0o600); err != nil {
		t.Fatal(err)
	}
	return server, fmt.Sprintf(`
provider "google" {
  type             = "gcp"
  project          = %q
  zones            = ["europe-west1-b", "europe-west1-c"]
  endpoint         = %q
  credentials_file = %q
  provisioning     = "spot"
  labels {
    team = "crawl"
  }
}`, project, server.URL(), key)
}

// TestMachinesOnComputeEngine from the job to a leased, used proxy, over a
// stockout and a preemption, and back to nothing.
func TestMachinesOnComputeEngine(t *testing.T) {
	server, block := computeEngine(t)
	f := own(t, cluster.Config{PluginConfig: block})
	f.attributes(f.Nomad.Node, map[string]string{"google.type": "gcp", "google.ready": "true", "google.europe-west1-b.reason": "Reachable"})
	lease := f.leaseService(nil)

	server.Fail(computetest.Fault{Call: "instances.insert", Zone: "europe-west1-b", Times: 1,
		Operation: &computetest.OperationError{Code: "ZONE_RESOURCE_POOL_EXHAUSTED", Message: "no e2-small left", Status: 503}})
	f.load("gcp", f.name, map[string]string{"count": "2", "provider": "google", "max_parallel": "2"})
	entries := f.passing(2)
	var zones []string
	for _, entry := range entries {
		if entry.Service.Port != 3128 || entry.Service.Meta["provider"] != "google" {
			t.Errorf("registered as %+v", entry.Service)
		}
		zones = append(zones, entry.Service.Meta["zone"])
	}
	if !slices.Contains(zones, "europe-west1-c") {
		t.Errorf("zones are %q, want one in the second after the stockout of the first", zones)
	}
	granted := lease.acquire(api.Acquire{Target: f.Origin.HTTP, TTL: api.Duration(patience)})
	f.worksURL(granted.URL)
	lease.release(granted)

	before := server.Machines()
	if len(before) != 2 {
		t.Fatalf("%d machines, want 2: %v", len(before), before)
	}
	server.Preempt(before[0].Name, false)
	f.event(f.name, "preempted")
	f.until("a new machine is in the place of the preempted one", func(context.Context) error {
		now := server.Machines()
		for _, machine := range now {
			if machine.ID == before[0].ID {
				return fmt.Errorf("%s is still there", machine.Name)
			}
		}
		if len(now) != 2 {
			return fmt.Errorf("%d machines", len(now))
		}
		return nil
	})
	f.passing(2)

	f.stop(f.name)
	f.until("the project is empty", func(context.Context) error {
		if left := server.Machines(); len(left) > 0 {
			return fmt.Errorf("machines left: %v", left)
		}
		return nil
	})
	if problems := server.Problems(); len(problems) > 0 {
		t.Errorf("requests that Google would refuse:\n%s", strings.Join(problems, "\n"))
	}
}
