package e2e_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	nomad "github.com/hashicorp/nomad/api"

	"github.com/egress-proxies/egress/e2e/cluster"
)

// healthConfig checks often, and has two more providers on the node: spare,
// which tests break, and small, which they give little room.
const healthConfig = `
fingerprint {
  interval = "300ms"
  timeout  = "5s"
}
provider "spare" {
  type          = "process"
  allow_clients = ["127.0.0.0/8", "::1/128"]
  allow_targets = ["127.0.0.0/8", "::1/128"]
}
provider "small" {
  type          = "process"
  allow_clients = ["127.0.0.0/8", "::1/128"]
  allow_targets = ["127.0.0.0/8", "::1/128"]
}
`

// egress runs a verb of the program against the cluster and gives what it
// printed and its exit code.
func (f *fixture) egress(args ...string) (output string, code int) {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(f.t.Context(), patience)
	defer cancel()
	cmd := f.command(ctx, args...)
	text, err := cmd.CombinedOutput()
	var failed *exec.ExitError
	if err != nil && (!errors.As(err, &failed) || ctx.Err() != nil) {
		f.t.Fatalf("egress %q: %v\n%s", args, err, text)
	}
	f.t.Logf("egress %s\n%s", strings.Join(args, " "), text)
	return string(text), cmd.ProcessState.ExitCode()
}

// command is a verb of the program with the cluster in its environment.
func (f *fixture) command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, f.Plugin, args...)
	cmd.Env = append(os.Environ(), "NOMAD_ADDR="+f.Nomad.Address, "NOMAD_TOKEN=", "NOMAD_NAMESPACE=")
	return cmd
}

// run submits an embedded jobspec as the product does, with its variables as
// "name=value", and gives what was printed and the exit code. The job is stopped
// at the end.
func (f *fixture) run(spec, id string, variables ...string) (output string, code int) {
	f.t.Helper()
	args := []string{"job", "run", spec, "--var", "name=" + id, "--var", "service=" + f.name}
	for _, variable := range variables {
		args = append(args, "--var", variable)
	}
	if _, known := f.ended[id]; !known {
		f.ended[id] = false
		f.t.Cleanup(func() { f.stop(id) })
	}
	return f.egress(args...)
}

// says fails the test unless text has all the parts.
func says(t *testing.T, text string, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if !strings.Contains(text, part) {
			t.Errorf("no %q in:\n%s", part, text)
		}
	}
}

// attributes waits until the node has the attributes; an empty value is one
// that it must not have.
func (f *fixture) attributes(read func(context.Context) (*nomad.Node, error), want map[string]string) {
	f.t.Helper()
	f.until(fmt.Sprintf("the node has %v", want), func(ctx context.Context) error {
		node, err := read(ctx)
		if err != nil {
			return err
		}
		var problems []error
		for key, value := range want {
			key = "driver.egress." + key
			if got, set := node.Attributes[key]; got != value || set != (value != "") {
				problems = append(problems, fmt.Errorf("%s is %q (set: %v)", key, got, set))
			}
		}
		return errors.Join(problems...)
	})
}

// breakProvider puts a file where a process provider wants its directory, which
// no right can help against, and gives what repairs it.
func breakProvider(t *testing.T, stateDir, provider string) (repair func()) {
	t.Helper()
	path := filepath.Join(stateDir, "providers", provider)
	for { // A check that comes in between makes the directory again.
		if err := os.RemoveAll(path); err != nil {
			t.Fatal(err)
		}
		err := os.WriteFile(path, nil, 0o644)
		if err == nil {
			break
		}
		if !errors.Is(err, syscall.EISDIR) {
			t.Fatal(err)
		}
	}
	return func() {
		t.Helper()
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
}

// room gives a provider a file system of its own, of so many MiB: what is free
// of it is what was not written, and it takes no memory.
func room(t *testing.T, stateDir, provider string, mib int) (resize func(mib int)) {
	t.Helper()
	path := filepath.Join(stateDir, "providers", provider)
	if err := os.MkdirAll(path, 0o700); err != nil {
		t.Fatal(err)
	}
	size := func(mib int) string { return fmt.Sprintf("size=%dm", mib) }
	if err := syscall.Mount("tmpfs", path, "tmpfs", 0, size(mib)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(path, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return func(mib int) {
		t.Helper()
		if err := syscall.Mount("tmpfs", path, "tmpfs", syscall.MS_REMOUNT, size(mib)); err != nil {
			t.Fatal(err)
		}
	}
}

// TestABrokenProviderGetsNoProxiesUntilItIsBack: without a restart of anything.
func TestABrokenProviderGetsNoProxiesUntilItIsBack(t *testing.T) {
	f := own(t, cluster.Config{PluginConfig: healthConfig})
	f.attributes(f.Nomad.Node, map[string]string{
		"spare.type": "process", "spare.ready": "true", "spare.targets": "1", "spare.targets_ready": "1",
		"spare.local.ready": "true", "spare.local.reason": "Reachable", "bought.ready": "true",
	})
	out, code := f.egress("check", filepath.Join(f.Dir, "nomad.hcl"))
	if code != 0 {
		t.Errorf("check of a healthy node: exit code %d\n%s", code, out)
	}
	repair := breakProvider(t, f.StateDir, "spare")
	f.attributes(f.Nomad.Node, map[string]string{
		"spare.ready": "false", "spare.targets_ready": "0", "spare.local.ready": "false", "spare.local.reason": "Forbidden",
		"local.ready": "true",
	})
	node, err := f.Nomad.Node(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	driver := node.Drivers["egress"]
	if want := "3 of 4 targets ready; not ready: spare/local (Forbidden)"; !driver.Healthy || driver.HealthDescription != want {
		t.Errorf("driver: healthy %v: %q, want healthy: %q", driver.Healthy, driver.HealthDescription, want)
	}
	out, code = f.egress("check", filepath.Join(f.Dir, "nomad.hcl"))
	if code != 1 {
		t.Errorf("check of a broken provider: exit code %d", code)
	}
	says(t, out, "What to do:", "spare/local: Forbidden:", filepath.Join("providers", "spare"), "1 of 4 targets not ready")

	out, code = f.run("process", f.name, "provider=spare", "count=1")
	if code != 3 {
		t.Errorf("run on a broken provider: exit code %d, want 3", code)
	}
	says(t, out, `e2e: attr.driver.egress.spare.ready is "false", want = true`)
	repair()
	f.passing(1)
	f.attributes(f.Nomad.Node, map[string]string{"spare.ready": "true", "spare.local.reason": "Reachable"})
}

// TestFreeSpaceDecidesPlacement: a job that needs 50 GiB is not placed where 40
// are free, and the evaluation says so.
func TestFreeSpaceDecidesPlacement(t *testing.T) {
	f := own(t, cluster.Config{PluginConfig: healthConfig})
	resize := room(t, f.StateDir, "small", 40<<10)
	const fact = "small.local.state_dir_available_mib"
	f.attributes(f.Nomad.Node, map[string]string{fact: "40000"})
	needs := `constraints=[{attribute="attr.driver.egress.` + fact + `", operator=">=", value="50000"}]`
	refusal := `e2e: attr.driver.egress.` + fact + ` is "40000", want >= 50000`
	out, code := f.egress("job", "plan", "process", "--var", "provider=small", "--var", needs)
	if code != 3 {
		t.Errorf("plan: exit code %d, want 3", code)
	}
	says(t, out, refusal, `group "proxy": 3 to start`)
	out, code = f.run("process", f.name, "provider=small", "count=1", needs)
	if code != 3 {
		t.Errorf("run: exit code %d, want 3", code)
	}
	says(t, out, refusal)
	evals, _, err := f.Nomad.Client.Jobs().Evaluations(f.name, nil)
	if err != nil {
		t.Fatal(err)
	}
	legible := false
	for _, eval := range evals {
		if failed := eval.FailedTGAllocs["proxy"]; failed != nil {
			legible = legible || failed.ConstraintFiltered["${attr.driver.egress."+fact+"} >= 50000"] == 1
		}
	}
	if !legible {
		t.Errorf("no evaluation names the constraint: %+v", evals)
	}
	resize(110 << 10)
	f.passing(1)
	f.attributes(f.Nomad.Node, map[string]string{fact: "100000"})
}

// TestAnIdleNodeIsNotWritten: free space moves, checks take their time, and the
// servers hear nothing of it. make e2e-full watches ten minutes.
func TestAnIdleNodeIsNotWritten(t *testing.T) {
	f := own(t, cluster.Config{PluginConfig: healthConfig})
	room(t, f.StateDir, "small", 400)
	f.attributes(f.Nomad.Node, map[string]string{"small.local.state_dir_available_mib": "400"})
	// 400 is an edge: one MiB less is another band. Then there is room to move.
	moving := filepath.Join(f.StateDir, "providers", "small", "moving")
	if err := os.WriteFile(moving, make([]byte, 20<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	f.attributes(f.Nomad.Node, map[string]string{"small.local.state_dir_available_mib": "350"})
	watched := 20 * time.Second
	if os.Getenv("EGRESS_E2E_FULL") != "" {
		watched = 10 * time.Minute
	}
	before, err := f.Nomad.Node(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	until := time.Now().Add(watched)
	for size := int64(1); time.Now().Before(until); size++ {
		// Between 363 and 399 MiB are free.
		if err := os.Truncate(moving, 0); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(moving, make([]byte, 1+(size*7%36)<<20), 0o600); err != nil {
			t.Fatal(err)
		}
		time.Sleep(100 * time.Millisecond) // The disk's own pace, not a wait for anything.
	}
	after, err := f.Nomad.Node(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%v idle: node written %d times, %d events", watched, after.ModifyIndex-before.ModifyIndex, len(after.Events)-len(before.Events))
	if after.ModifyIndex != before.ModifyIndex || len(after.Events) != len(before.Events) {
		t.Errorf("the node was written: index %d, then %d; attributes\n%v\nthen\n%v",
			before.ModifyIndex, after.ModifyIndex, before.Attributes, after.Attributes)
	}
}

// TestATargetThatLeavesTheConfigLeavesTheNode and its driver's description.
func TestATargetThatLeavesTheConfigLeavesTheNode(t *testing.T) {
	f := own(t, cluster.Config{PluginConfig: healthConfig})
	breakProvider(t, f.StateDir, "spare")
	f.attributes(f.Nomad.Node, map[string]string{"spare.local.ready": "false", "spare.type": "process"})
	if err := f.Nomad.Stop(); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(f.Dir, "nomad.hcl")
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	began := bytes.Index(text, []byte(`provider "spare"`))
	ended := began + bytes.IndexByte(text[began:], '}') + 1
	if err := os.WriteFile(file, append(bytes.Clone(text[:began]), text[ended:]...), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := f.Nomad.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	f.attributes(f.Nomad.Node, map[string]string{
		"spare.local.ready": "", "spare.local.reason": "", "spare.type": "", "spare.ready": "", "small.ready": "true",
	})
	node, err := f.Nomad.Node(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if driver := node.Drivers["egress"]; driver.HealthDescription != "Healthy" {
		t.Errorf("driver: %q, want Healthy", driver.HealthDescription)
	}
}

// TestMetricsOfThePluginWaitForTheirPort, which another agent of the host holds:
// the plugin works on without, and says so once.
func TestMetricsOfThePluginWaitForTheirPort(t *testing.T) {
	f := own(t, cluster.Config{PluginConfig: healthConfig})
	if err := f.Nomad.Stop(); err != nil {
		t.Fatal(err)
	}
	address := strings.TrimSuffix(strings.TrimPrefix(f.Nomad.Metrics, "http://"), "/metrics")
	other, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = other.Close() }()
	if err := f.Nomad.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	f.fleet(map[string]string{"count": "1"})
	f.passing(1)
	if err := other.Close(); err != nil {
		t.Fatal(err)
	}
	f.until("the plugin serves its metrics", func(ctx context.Context) error {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, f.Nomad.Metrics, nil)
		if err != nil {
			return err
		}
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			return err
		}
		defer func() { _ = response.Body.Close() }()
		text, err := io.ReadAll(response.Body)
		if err == nil && !strings.Contains(string(text), `egress_target_up{provider="spare",target="local"} 1`) {
			err = fmt.Errorf("metrics:\n%s", text)
		}
		return err
	})
	log, err := os.ReadFile(filepath.Join(f.Dir, "nomad.log"))
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(log), "metrics are not served yet"); n != 1 {
		t.Errorf("the taken port is told %d times, want once", n)
	}
}
