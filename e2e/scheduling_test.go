package e2e_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	nomad "github.com/hashicorp/nomad/api"

	"github.com/egress-proxies/egress/e2e/cluster"
)

// fields are what a job's running allocations have, sorted.
func (f *fixture) fields(id string, field func(*nomad.AllocationListStub) string) []string {
	f.t.Helper()
	var values []string
	for _, alloc := range f.allocs(id) {
		if alloc.ClientStatus == nomad.AllocClientStatusRunning && alloc.DesiredStatus == nomad.AllocDesiredStatusRun {
			values = append(values, field(alloc))
		}
	}
	slices.Sort(values)
	return values
}

func allocID(alloc *nomad.AllocationListStub) string   { return alloc.ID }
func allocNode(alloc *nomad.AllocationListStub) string { return alloc.NodeName }

// TestJobRunFollowsADeploymentToItsEnd: line by line for each proxy, or as JSON,
// with an exit code.
func TestJobRunFollowsADeploymentToItsEnd(t *testing.T) {
	f := shared(t)
	out, code := f.run("process", f.name, "count=2", "max_parallel=2")
	if code != 0 {
		t.Errorf("exit code %d, want 0", code)
	}
	says(t, out, f.name+".proxy[0]/proxy: ", f.name+".proxy[1]/proxy: ", "Launching proxy eg-", "probing it",
		".proxy[0]: healthy", "healthy: 2 of 2 healthy after")
	f.passing(2)

	before := f.fields(f.name, allocID)
	out, code = f.egress("job", "plan", "process", "--var", "name="+f.name, "--var", "service="+f.name,
		"--var", "count=3", "--var", "max_parallel=2")
	if code != 0 {
		t.Errorf("plan: exit code %d, want 0", code)
	}
	says(t, out, `~ Count: "2" => "3"`, `group "proxy": 1 to start, 2 to update in place`)

	out, code = f.run("process", f.name, "count=3", "max_parallel=2")
	if code != 0 {
		t.Errorf("three: exit code %d, want 0\n%s", code, out)
	}
	f.passing(3)
	for _, id := range before {
		if !slices.Contains(f.fields(f.name, allocID), id) {
			t.Errorf("growing the fleet ended proxy %s", id)
		}
	}

	args := []string{"job", "run", "process", "--json", "--var", "name=" + f.name, "--var", "service=" + f.name,
		"--var", "count=3", "--var", "max_parallel=2"}
	out, code = f.egress(args...)
	var last struct{ Outcome string }
	lines := strings.Split(strings.TrimSpace(out), "\n")
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), &last); err != nil || last.Outcome != "healthy" || code != 0 {
		t.Errorf("the same again as JSON: exit code %d, %v:\n%s", code, err, out)
	}
	out, code = f.egress(append(args, "--detach")...)
	if code != 0 || strings.Count(out, "\n") != 1 {
		t.Errorf("detached: exit code %d:\n%s", code, out)
	}
}

// TestInterruptedFollowingLeavesTheJob: Ctrl-C ends the following only.
func TestInterruptedFollowingLeavesTheJob(t *testing.T) {
	f := shared(t)
	f.ended[f.name] = false
	t.Cleanup(func() { f.stop(f.name) })
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	// The probe never passes, so that there is something to follow for long.
	cmd := exec.CommandContext(ctx, f.Plugin, "job", "run", "process", "--var", "name="+f.name, "--var", "service="+f.name,
		"--var", "count=1", "--var", "start_timeout=5s", "--var", `probe_urls=["http://127.0.0.1:1/"]`)
	cmd.Env = append(os.Environ(), "NOMAD_ADDR="+f.Nomad.Address)
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	f.event(f.name, "probing it")
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != 130 {
		t.Errorf("exit code %d, want 130:\n%s", code, out.String())
	}
	says(t, out.String(), "the job goes on: nomad job status "+f.name)
	job, _, err := f.Nomad.Client.Jobs().Info(f.name, nil)
	if err != nil || *job.Stop {
		t.Errorf("the job was stopped: %v", err)
	}
}

// TestAnUpdateThatNeverWorksIsRevertedAndReplacesNothing: a canary is proven by
// the probe before any working proxy ends.
func TestAnUpdateThatNeverWorksIsRevertedAndReplacesNothing(t *testing.T) {
	f := shared(t)
	fleet := []string{"count=2", "max_parallel=2", "canary=1", "start_timeout=3s", "restart_delay=1s",
		"healthy_deadline=20s", "progress_deadline=40s"}
	if out, code := f.run("process", f.name, fleet...); code != 0 {
		t.Fatalf("a working fleet: exit code %d\n%s", code, out)
	}
	f.passing(2)
	before := f.fields(f.name, allocID)
	out, code := f.run("process", f.name, append(fleet, `probe_urls=["http://127.0.0.1:1/"]`, "tags=[\"new\"]")...)
	if code != 2 {
		t.Errorf("an update that never works: exit code %d, want 2", code)
	}
	says(t, out, "failed: ", "rolling back to job version 0")
	f.until("the fleet is what it was", func(context.Context) error {
		if after := f.fields(f.name, allocID); !slices.Equal(before, after) {
			return fmt.Errorf("allocations %v, want %v", after, before)
		}
		return nil
	})
	for _, entry := range f.passing(2) {
		if slices.Contains(entry.Service.Tags, "new") {
			t.Errorf("%s is of the update", entry.Service.ID)
		}
	}
	// And one that works replaces the fleet, its canary first.
	if out, code = f.run("process", f.name, append(fleet, "tags=[\"new\"]")...); code != 0 {
		t.Errorf("an update that works: exit code %d\n%s", code, out)
	}
	f.until("the fleet is new", func(context.Context) error {
		for _, entry := range f.passing(2) {
			if !slices.Contains(entry.Service.Tags, "new") {
				return fmt.Errorf("%s is of the old version", entry.Service.ID)
			}
		}
		return nil
	})
}

// TestTheFleetFollowsTheHealthOfItsNodes with two nodes of which each has its
// own targets: spread, distinct hosts, and a node that can launch nothing.
func TestTheFleetFollowsTheHealthOfItsNodes(t *testing.T) {
	f := own(t, cluster.Config{PluginConfig: healthConfig})
	second, err := f.AddClient(t.Context(), "second")
	if err != nil {
		t.Fatal(err)
	}
	both := func(id string, want ...string) {
		t.Helper()
		f.until(fmt.Sprintf("%s runs on %v", id, want), func(context.Context) error {
			if got := f.fields(id, allocNode); !slices.Equal(got, want) {
				return fmt.Errorf("on %v", got)
			}
			return nil
		})
	}
	t.Run("spread", func(t *testing.T) {
		// Without it, Nomad fills one node first.
		if out, code := f.run("process", f.name, "count=4", "max_parallel=4", "spread=node.unique.name"); code != 0 {
			t.Errorf("exit code %d\n%s", code, out)
		}
		both(f.name, "e2e", "e2e", "second", "second")
	})
	t.Run("distinct hosts", func(t *testing.T) {
		id := f.name + "-distinct"
		out, code := f.run("process", id, "count=3", "max_parallel=3", "distinct_hosts=true")
		if code != 3 {
			t.Errorf("three on two nodes: exit code %d, want 3", code)
		}
		says(t, out, "distinct_hosts", "2 of 3 healthy")
		both(id, "e2e", "second")
	})
	t.Run("a node that can launch nothing", func(t *testing.T) {
		id := f.name + "-spare"
		repair := breakProvider(t, second.StateDir, "spare")
		f.attributes(second.Node, map[string]string{"spare.ready": "false", "local.ready": "true"})
		out, code := f.run("process", id, "provider=spare", "count=2", "max_parallel=2", "distinct_hosts=true")
		if code != 3 {
			t.Errorf("two on one usable node: exit code %d, want 3", code)
		}
		says(t, out, `second: attr.driver.egress.spare.ready is "false", want = true`)
		if strings.Contains(out, `e2e: attr.driver.egress.spare.ready`) {
			t.Error("the healthy node is blamed")
		}
		both(id, "e2e")
		repair()
		both(id, "e2e", "second")
	})
}
