package e2e_test

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/egress-proxies/egress/e2e/cluster"
	"github.com/egress-proxies/egress/lease/api"
)

// target waits until the lease service tells of the node's one target of the
// provider what is wanted.
func (l *leases) target(provider, what string, wanted func(api.Target) bool) (found api.Target) {
	l.f.t.Helper()
	l.f.until(provider+" is "+what, func(ctx context.Context) error {
		var list api.Targets
		if err := l.call(ctx, http.MethodGet, api.PathTargets, nil, &list, http.StatusOK); err != nil {
			return err
		}
		for _, target := range list.Targets {
			if target.Provider != provider {
				continue
			}
			if found = target; wanted(target) {
				return nil
			}
			return fmt.Errorf("%s: %s, %s, %v", target.State, target.Reason, target.Advice, target.Facts)
		}
		return fmt.Errorf("no target of %s among %+v", provider, list.Targets)
	})
	return found
}

// TestATargetThatBreaksIsSeenByTheLeaseService: and that it is back, and what
// room is there, without a write to Consul while nothing really changes.
func TestATargetThatBreaksIsSeenByTheLeaseService(t *testing.T) {
	f := own(t, cluster.Config{PluginConfig: healthConfig})
	room(t, f.StateDir, "small", 400)
	l := f.leaseService(nil)
	ready := func(target api.Target) bool { return target.State == "ready" && target.Reason == "Reachable" }
	spare := l.target("spare", "ready", ready)
	if spare.Type != "process" || spare.Target != "local" || spare.Node == "" {
		t.Errorf("target %+v", spare)
	}
	repair := breakProvider(t, f.StateDir, "spare")
	l.target("spare", "broken", func(target api.Target) bool {
		return target.State == "not_ready" && target.Reason == "Forbidden" && target.Advice != ""
	})
	l.target("local", "ready all the same", ready)
	out, code := f.egress("lease", "targets", "--address", l.root)
	if code != 0 {
		t.Errorf("egress lease targets: exit code %d", code)
	}
	says(t, out, "not ready", "Forbidden", "MiB disk")
	repair()
	l.target("spare", "ready again", ready)

	// 400 is an edge: one MiB less is another band. Then there is room to move.
	const fact = "state_dir_available_mib"
	moving := filepath.Join(f.StateDir, "providers", "small", "moving")
	if err := os.WriteFile(moving, make([]byte, 20<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	l.target("small", "fuller", func(target api.Target) bool { return target.Facts[fact] == "350" })
	before := f.targetWrites()
	for size := range 30 {
		// Between 363 and 399 MiB are free.
		if err := os.WriteFile(moving, make([]byte, 1+(size*7%36)<<20), 0o600); err != nil {
			t.Fatal(err)
		}
		time.Sleep(100 * time.Millisecond) // The disk's own pace, not a wait for anything.
	}
	if after := f.targetWrites(); before["small"] == 0 || after["small"] != before["small"] {
		t.Errorf("the target was written to Consul while it stayed in its band: %v, then %v", before, after)
	}
}

// targetWrites is the index of the last write of each provider's target.
func (f *fixture) targetWrites() map[string]uint64 {
	f.t.Helper()
	entries, _, err := f.Consul.Client.Health().Service("egress-target", "", false, nil)
	if err != nil {
		f.t.Fatal(err)
	}
	writes := map[string]uint64{}
	for _, entry := range entries {
		writes[entry.Service.Meta["provider"]] = entry.Service.ModifyIndex
	}
	return writes
}
