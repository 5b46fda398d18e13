package process

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/egress-proxies/egress/provider"
	"github.com/egress-proxies/egress/provider/process/supervise"
)

// The variables that make the test binary a plugin which creates one instance.
const (
	pluginSpec = "EGRESS_TEST_PLUGIN_SPEC"
	pluginDir  = "EGRESS_TEST_PLUGIN_DIR"
)

func pluginMain(dir, encoded string) {
	var spec provider.Spec
	err := json.Unmarshal([]byte(encoded), &spec)
	var p provider.Provider
	if err == nil {
		p, err = New(provider.Config{Name: "local", Type: Type}, provider.Env{Cluster: "test", StateDir: dir})
	}
	if err == nil {
		_, err = p.Create(context.Background(), spec)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		if checker, ok := p.(provider.Checker); ok {
			fmt.Fprintln(os.Stderr, checker.Check(context.Background()))
		}
		os.Exit(1)
	}
	os.Exit(0)
}

// alive counts the processes of an instance.
func alive(t *testing.T, dir string) int {
	t.Helper()
	marked, err := supervise.Marked(dir)
	if err != nil {
		t.Fatal(err)
	}
	count := 0
	for _, process := range marked {
		if process.Alive() {
			count++
		}
	}
	return count
}

// A plugin is killed after ever more of its Create; whatever it came to, the
// next one ends up with one supervisor and one proxy, and its delete with none.
func TestPluginKilledAnywhereInCreate(t *testing.T) {
	dir := t.TempDir()
	p := newProvider(t, dir, "test", nil)
	spec := instanceSpec(t)
	encoded, err := json.Marshal(spec)
	if err != nil {
		t.Fatal(err)
	}
	instance := filepath.Join(dir, spec.Name)
	for delay := time.Duration(0); delay < 90*time.Millisecond; delay += 6 * time.Millisecond {
		plugin := exec.Command(os.Args[0])
		plugin.Env = append(os.Environ(), pluginSpec+"="+string(encoded), pluginDir+"="+dir)
		if err := plugin.Start(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(delay) // not a wait for anything: the moment of the kill
		_ = plugin.Process.Kill()
		_ = plugin.Wait()
		reached := snapshotOf(t, p, spec.Name).Phase

		if _, err := p.Create(t.Context(), spec); err != nil {
			t.Fatalf("killed after %s in phase %d: create: %v", delay, reached, err)
		}
		eventually(t, "one supervisor and one proxy", func() bool { return alive(t, instance) == 2 })
		if err := p.Delete(t.Context(), provider.Ref{Name: spec.Name}); err != nil {
			t.Fatalf("killed after %s in phase %d: delete: %v", delay, reached, err)
		}
		if n := things(t, instance); n != 0 {
			t.Fatalf("killed after %s in phase %d: %d things are left after delete", delay, reached, n)
		}
	}
}

// The instance outlives the plugin that made it.
func TestPluginGoneInstanceStays(t *testing.T) {
	dir := t.TempDir()
	p := newProvider(t, dir, "test", nil)
	spec := instanceSpec(t)
	t.Cleanup(func() {
		if err := p.Delete(context.Background(), provider.Ref{Name: spec.Name}); err != nil {
			t.Error(err)
		}
	})
	encoded, err := json.Marshal(spec)
	if err != nil {
		t.Fatal(err)
	}
	plugin := exec.Command(os.Args[0])
	plugin.Env = append(os.Environ(), pluginSpec+"="+string(encoded), pluginDir+"="+dir)
	if out, err := plugin.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	instance, err := p.Get(t.Context(), provider.Ref{Name: spec.Name})
	if err != nil || instance.State != provider.Running {
		t.Fatalf("%+v, %v, want it running", instance, err)
	}
	listens(t, instance)
}

// A binary that only root may execute can't become a proxy of nobody.
func TestBinaryThatNobodyMayExecute(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can change to another account")
	}
	binary := filepath.Join(t.TempDir(), "egress")
	content, err := os.ReadFile(os.Args[0])
	if err == nil {
		err = os.WriteFile(binary, content, 0o700)
	}
	if err != nil {
		t.Fatal(err)
	}
	encoded, err := json.Marshal(instanceSpec(t))
	if err != nil {
		t.Fatal(err)
	}
	plugin := exec.Command(binary)
	plugin.Env = append(os.Environ(), pluginSpec+"="+string(encoded), pluginDir+"="+t.TempDir())
	out, err := plugin.CombinedOutput()
	for _, want := range []string{
		"start egress: the egress binary is not executable for uid 65534: make it so (chmod 755)",
		"mode 0700 does not let uid 65534 execute it",
	} {
		if err == nil || !strings.Contains(string(out), want) {
			t.Errorf("%v: %s, want %q in it", err, out, want)
		}
	}
}
