package e2e_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/egress-proxies/egress/e2e/cluster"
)

// hypervisors are two Nomad nodes that are hypervisors each: e2e with a pool of
// some 40 GiB, second with one of 90.
type hypervisors struct {
	*fixture
	first, second *libvirtHost
	client        *cluster.Client
}

// newHypervisors connects each node to its own libvirtd as host "own".
func newHypervisors(t *testing.T) *hypervisors {
	t.Helper()
	t.Parallel()
	sockets := t.TempDir()
	v := &hypervisors{first: bootless(t, "hv-first", 42<<10), second: bootless(t, "hv-second", 93<<10)}
	for node, h := range map[string]*libvirtHost{"e2e": v.first, "second": v.second} {
		if err := os.Symlink(h.Socket, filepath.Join(sockets, node)); err != nil {
			t.Fatal(err)
		}
	}
	image := filepath.Join(sockets, "image.raw")
	if err := os.WriteFile(image, bootlessDisk(t), 0o644); err != nil {
		t.Fatal(err)
	}
	c, err := startCluster(cluster.Config{PluginConfig: fmt.Sprintf(`
fingerprint {
  interval = "500ms"
  timeout  = "3s"
}
provider "hv" {
  type = "kvm"
  host "own" {
    address = "unix://%s/%s"
  }
  image "nothing" {
    url      = %q
    firmware = "bios"
  }
  machine_type "small" {
    cores      = 1
    memory_mib = 64
  }
  default_image        = "nothing"
  default_machine_type = "small"
}`, sockets, cluster.NodeName, image)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	v.fixture = newFixture(t, c)
	v.attributes(v.Nomad.Node, map[string]string{"hv.own.ready": "true", "hv.own.hostname": "hv-first"})
	if v.client, err = v.AddClient(t.Context(), "second"); err != nil {
		t.Fatal(err)
	}
	v.attributes(v.client.Node, map[string]string{"hv.own.ready": "true", "hv.own.hostname": "hv-second"})
	return v
}

// on waits until the allocations of a job are on just these nodes.
func (v *hypervisors) on(id string, want ...string) {
	v.t.Helper()
	v.until(fmt.Sprintf("%s is on %v", id, want), func(context.Context) error {
		got := v.placed(id)
		if slices.Sort(got); !slices.Equal(got, want) {
			return fmt.Errorf("on %v", got)
		}
		return nil
	})
}

// TestMachinesFollowTheHealthOfTheirHypervisors on the real scheduler: room,
// spread, and a node whose libvirtd hangs or died.
func TestMachinesFollowTheHealthOfTheirHypervisors(t *testing.T) {
	v := newHypervisors(t)
	t.Run("room", v.roomDecides)
	t.Run("spread", v.spread)
	t.Run("a hypervisor that hangs, and one that died", v.deadHypervisor)
}

// roomDecides: a job that needs 50 GiB is not placed where 40 are free, and one
// that needs more than any has is told so.
func (v *hypervisors) roomDecides(t *testing.T) {
	needs := func(gib string) string {
		return `constraints=[{attribute="attr.driver.egress.hv.own.pool_available_gib", operator=">=", value="` + gib + `"}]`
	}
	out, code := v.egress("job", "plan", "kvm", "--var", "name="+v.name+"-huge", "--var", "count=2", "--var", needs("500"))
	if code != 3 {
		t.Errorf("plan of what fits nowhere: exit code %d, want 3", code)
	}
	for node, gib := range map[string]string{"e2e": "40", "second": "90"} {
		says(t, out, node+`: attr.driver.egress.hv.own.pool_available_gib is "`+gib+`", want >= 500`)
	}
	id := v.name + "-room"
	v.machines(id, map[string]string{"count": "2", "max_parallel": "2", "constraints": strings.TrimPrefix(needs("50"), "constraints=")})
	v.on(id, "second", "second")
	v.running(id, 2)
	if n := len(v.second.domains()); n != 2 {
		t.Errorf("%d machines on the hypervisor with room, want 2", n)
	}
	v.stop(id)
	v.machines(id+"-none", map[string]string{"count": "1", "constraints": strings.TrimPrefix(needs("500"), "constraints=")})
	v.until("the evaluation names the attribute", func(context.Context) error {
		evals, _, err := v.Nomad.Client.Jobs().Evaluations(id+"-none", nil)
		for _, eval := range evals {
			failed := eval.FailedTGAllocs["proxy"]
			if failed != nil && failed.ConstraintFiltered["${attr.driver.egress.hv.own.pool_available_gib} >= 500"] == 2 {
				return nil
			}
		}
		return fmt.Errorf("%d evaluations, %v", len(evals), err)
	})
	v.on(id + "-none")
	v.stop(id + "-none")
}

// spread: over the hypervisors, by what they say of themselves.
func (v *hypervisors) spread(t *testing.T) {
	id := v.name + "-spread"
	v.machines(id, map[string]string{"count": "4", "max_parallel": "4", "spread": "attr.driver.egress.hv.own.hostname"})
	v.on(id, "e2e", "e2e", "second", "second")
	v.running(id, 4)
	if a, b := len(v.first.domains()), len(v.second.domains()); a != 2 || b != 2 {
		t.Errorf("%d and %d machines, want two on each", a, b)
	}
	v.stop(id)
}

// deadHypervisor: no new proxies while it can't launch any, and what waited is
// placed when it is back; no agent and no plugin is restarted.
func (v *hypervisors) deadHypervisor(t *testing.T) {
	for _, fault := range []struct {
		name, reason   string
		break_, repair func()
	}{
		{"hangs", "Timeout", func() { v.second.signal(syscall.SIGSTOP) }, func() { v.second.signal(syscall.SIGCONT) }}, // make e2e-full
		{"died", "LibvirtConnectFailed", v.second.kill, func() { v.second.start(); v.second.virsh("net-start", "default") }},
	} {
		if fault.name == "hangs" && os.Getenv("EGRESS_E2E_FULL") == "" {
			continue // Each fault takes the agent's pace in telling of its node, four times.
		}
		id := v.name + "-" + fault.name
		fault.break_()
		v.attributes(v.client.Node, map[string]string{"hv.own.ready": "false", "hv.own.reason": fault.reason, "hv.ready": "false"})
		v.machines(id, map[string]string{"count": "2", "max_parallel": "2", "distinct_hosts": "true"})
		v.on(id, "e2e")
		out, code := v.egress("job", "plan", "kvm", "--var", "name="+id+"-plan", "--var", "count=2", "--var", "distinct_hosts=true")
		if code != 3 {
			t.Errorf("%s: plan: exit code %d, want 3", fault.name, code)
		}
		says(t, out, `second: attr.driver.egress.hv.ready is "false", want = true`)
		fault.repair()
		v.on(id, "e2e", "second")
		v.running(id, 2)
		v.stop(id)
	}
}
