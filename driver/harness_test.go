package driver

import (
	"context"
	"errors"
	"net/netip"
	"slices"
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
	"github.com/egress-proxies/egress/driver/probe"
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

// fakeProbe says what it was told of every proxy.
type fakeProbe struct {
	mu      sync.Mutex // guards what follows
	says    probe.Verdict
	changed chan struct{}
	probed  []probe.Proxy
	used    [][2]string // credentials that were set
}

var works = probe.Verdict{OK: true, Message: probe.Works, ExitIP: netip.MustParseAddr("198.51.100.7"), Latency: time.Millisecond}

func refuses(stage probe.Stage, message string) probe.Verdict {
	return probe.Verdict{Stage: stage, Message: string(stage) + ": " + message}
}

func newFakeProbe() *fakeProbe { return &fakeProbe{says: works, changed: make(chan struct{})} }

// say changes what every probe finds from now on.
func (f *fakeProbe) say(verdict probe.Verdict) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.says = verdict
	close(f.changed)
	f.changed = make(chan struct{})
}

func (f *fakeProbe) look() (probe.Verdict, <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.says, f.changed
}

// asked is true once a proxy was to be probed.
func (f *fakeProbe) asked() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.probed) > 0
}

// first is the proxy that was probed first.
func (f *fakeProbe) first() probe.Proxy {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.probed[0]
}

func (f *fakeProbe) prober(_ probe.Config, proxy probe.Proxy) (prober, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.probed = append(f.probed, proxy)
	return f, nil
}

func (f *fakeProbe) Once(context.Context) probe.Verdict {
	verdict, _ := f.look()
	return verdict
}

func (f *fakeProbe) Await(ctx context.Context, onVerdict func(probe.Verdict)) (probe.Verdict, error) {
	for {
		verdict, changed := f.look()
		onVerdict(verdict)
		if verdict.OK {
			return verdict, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return verdict, context.Cause(ctx)
		}
	}
}

func (f *fakeProbe) Run(ctx context.Context, initial probe.Verdict, callbacks probe.Callbacks) {
	published := initial
	idle := time.NewTicker(time.Millisecond)
	defer idle.Stop()
	for {
		verdict, changed := f.look()
		callbacks.OnVerdict(verdict)
		if verdict.OK != published.OK || !published.Known() {
			change := probe.ToPassing
			if !verdict.OK {
				change = probe.ToCritical
			}
			callbacks.OnTransition(probe.Transition{Change: change, Verdict: verdict})
			published = verdict
		}
		for said := false; !said; {
			callbacks.OnIdle()
			select {
			case <-changed:
				said = true
			case <-idle.C:
			case <-ctx.Done():
				return
			}
		}
	}
}

func (f *fakeProbe) SetCredentials(username, password string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.used = append(f.used, [2]string{username, password})
	return nil
}
