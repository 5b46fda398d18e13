package driver

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/hcl"
	"github.com/hashicorp/nomad/helper/pluginutils/hclspecutils"
	"github.com/hashicorp/nomad/helper/pluginutils/hclutils"
	"github.com/hashicorp/nomad/nomad/structs"
	"github.com/hashicorp/nomad/plugins/base"
	"github.com/hashicorp/nomad/plugins/drivers"

	"github.com/egress-proxies/egress/driver/gc"
	"github.com/egress-proxies/egress/driver/registry"
	"github.com/egress-proxies/egress/provider"
	"github.com/egress-proxies/egress/provider/fake"
)

const testConfig = `
  state_dir = "%STATE%"
  probe { urls = ["http://target.test/"] }
  fingerprint { interval = "100ms" }
  provider "fake" { type = "fake" }
`

// harness is a driver over a fake provider, with a Consul and a probe that are
// told what to say. A second harness over the same parts is a restarted plugin.
type harness struct {
	*Driver
	t     testing.TB
	parts *parts
}

// parts is what outlives the plugin.
type parts struct {
	provider *fake.Provider
	consul   *fakeConsul
	targets  fakeTargets
	probe    *fakeProbe
	nomad    *fakeNomad
	state    string
	bare     bool // the provider has only what the contract demands
}

func newParts(t testing.TB) *parts {
	return &parts{
		provider: fake.New(fake.Options{}),
		consul:   &fakeConsul{entries: make(map[string]registration)},
		probe:    newFakeProbe(),
		nomad:    new(fakeNomad),
		state:    t.TempDir(),
	}
}

func newHarness(t testing.TB) *harness { return startHarness(t, newParts(t), testConfig) }

func (p *parts) factory(provider.Config, provider.Env) (provider.Provider, error) {
	if p.bare {
		return bare{p.provider}, nil
	}
	return p.provider, nil
}

// bare is a provider with nothing but the contract's four methods.
type bare struct{ provider.Provider }

// startHarness makes a plugin and configures it the way an agent does.
func startHarness(t testing.TB, parts *parts, config string) *harness {
	t.Helper()
	d := New(Options{
		Version:   "1.2.3",
		Logger:    hclog.New(&hclog.LoggerOptions{Level: hclog.Debug, Output: testWriter{t}}),
		Factories: provider.Factories{"fake": parts.factory},
	})
	d.newProber = parts.probe.prober
	d.newNomad = func(NomadConfig) (gc.Nomad, error) { return parts.nomad, nil }
	d.newRegistry = func(registry.Config) (registrar, error) { return parts.consul, nil }
	d.newTargets = parts.newTargets
	*d.timing = testTiming
	h := &harness{Driver: d, t: t, parts: parts}
	if err := h.SetConfig(pluginConfig(t, strings.ReplaceAll(config, "%STATE%", parts.state))); err != nil {
		t.Fatalf("SetConfig: %v", err)
	}
	t.Cleanup(func() {
		if err := d.Close(context.Background()); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return h
}

// patience bounds a failing test and says nothing about speed.
const patience = 30 * time.Second

// testTiming keeps tests from waiting; bounds stay long.
var testTiming = timing{
	poll: 5 * time.Millisecond, pollStart: time.Millisecond, pollMax: 20 * time.Millisecond,
	get: 20 * time.Second, deregister: time.Second, cleanup: 20 * time.Second, destroy: 20 * time.Second,
	drainLogs: 20 * time.Second, logRetry: time.Millisecond, saveOffset: 0, reconcile: time.Hour,
	collect: time.Millisecond, collectMax: 5 * time.Millisecond, strays: 5 * time.Millisecond,
	renew: time.Millisecond, rotate: 20 * time.Second,
	firstCheck: 20 * time.Second,
}

type testWriter struct{ t testing.TB }

func (w testWriter) Write(p []byte) (int, error) {
	w.t.Log(strings.TrimSpace(string(p)))
	return len(p), nil
}

// pluginConfig decodes HCL as the agent decodes its own files: HCL 1 into maps,
// these as JSON by the schema, the result as MessagePack.
func pluginConfig(t testing.TB, text string) *base.Config {
	t.Helper()
	packed, err := packConfig(text)
	if err != nil {
		t.Fatalf("plugin config: %v", err)
	}
	return &base.Config{PluginConfig: packed}
}

func packConfig(text string) ([]byte, error) {
	var file struct {
		Plugin struct {
			Config map[string]any `hcl:"config"`
		} `hcl:"plugin"`
	}
	if err := hcl.Decode(&file, "plugin {\nconfig {\n"+text+"\n}\n}"); err != nil {
		return nil, err
	}
	return pack(file.Plugin.Config, configSpec)
}

// task makes the TaskConfig of an invocation, as Nomad would.
func (h *harness) task(invocation string, config map[string]any) *drivers.TaskConfig {
	h.t.Helper()
	return h.taskOf("0c4f7bd8-2a4b-4f1e-9c55-0d7a5f3e1b11", invocation, config)
}

func (h *harness) taskOf(alloc, invocation string, config map[string]any) *drivers.TaskConfig {
	h.t.Helper()
	cfg := &drivers.TaskConfig{
		ID: alloc + "/proxy/" + invocation, AllocID: alloc, Name: "proxy",
		JobID: "fleet", JobName: "fleet", TaskGroupName: "group", Namespace: "default", NodeID: "node-1",
		AllocDir: h.t.TempDir(),
		Resources: &drivers.Resources{
			NomadResources: &structs.AllocatedTaskResources{},
			Ports:          &structs.AllocatedPorts{{Label: "proxy", Value: 25000, HostIP: "127.0.0.1"}},
		},
	}
	encodeTask(h.t, cfg, config)
	return cfg
}

func encodeTask(t testing.TB, cfg *drivers.TaskConfig, config map[string]any) {
	t.Helper()
	if config == nil {
		config = map[string]any{}
	}
	spec, diagnostics := hclspecutils.Convert(taskConfigSpec)
	if diagnostics.HasErrors() {
		t.Fatal(diagnostics)
	}
	value, diagnostics, _ := hclutils.ParseHclInterface(config, spec, nil)
	if diagnostics.HasErrors() {
		t.Fatal(diagnostics)
	}
	if err := cfg.EncodeDriverConfig(value); err != nil {
		t.Fatal(err)
	}
}

// start starts a task that must start.
func (h *harness) start(cfg *drivers.TaskConfig) (*drivers.TaskHandle, *drivers.DriverNetwork) {
	h.t.Helper()
	handle, network, err := h.StartTask(cfg)
	if err != nil {
		h.t.Fatalf("StartTask %s: %v", cfg.ID, err)
	}
	return handle, network
}

// waited is the result of a task, which must come soon.
func (h *harness) waited(id string) *drivers.ExitResult {
	h.t.Helper()
	ch, err := h.WaitTask(h.t.Context(), id)
	if err != nil {
		h.t.Fatalf("WaitTask: %v", err)
	}
	select {
	case result := <-ch:
		if result == nil {
			h.t.Fatal("WaitTask closed its channel without a result")
		}
		return result
	case <-time.After(patience):
		h.t.Fatalf("WaitTask gave no result in %v", patience)
		return nil
	}
}

func (p *parts) names() []string { return p.provider.World().Names() }

// eventually waits for a condition.
func eventually(t testing.TB, what string, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !is(); {
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s", patience, what)
		}
		time.Sleep(time.Millisecond)
	}
}

// fakeNomad knows which allocations live; a nil map can't be read.
type fakeNomad struct {
	mu   sync.Mutex // guards live
	live map[string]bool
}

func (n *fakeNomad) set(live map[string]bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.live = live
}

func (n *fakeNomad) LiveAllocs(context.Context, string) (map[string]bool, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.live == nil {
		return nil, errors.New("connection refused")
	}
	return n.live, nil
}

func (n *fakeNomad) Nodes(context.Context) (map[string]bool, error) { return nil, nil }
