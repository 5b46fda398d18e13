package driver

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/plugins/drivers"

	"github.com/egress-proxies/egress/driver/probe"
	"github.com/egress-proxies/egress/provider/fake"
)

func TestMissingAbilitiesAreTold(t *testing.T) {
	parts := newParts(t)
	parts.bare = true
	h := startHarness(t, parts, testConfig)
	cfg := h.task("1", nil)
	h.start(cfg)
	if _, err := h.ExecTask(cfg.ID, []string{"ls"}, time.Minute); err == nil ||
		!strings.Contains(err.Error(), `command "ls": provider "fake" (type fake) runs no commands in its instances: want "probe"`) {
		t.Errorf("exec: %v", err)
	}
	if err := h.SignalTask(cfg.ID, "SIGHUP"); err == nil ||
		!strings.Contains(err.Error(), `signal "SIGHUP": provider "fake" (type fake) sends no signals`) {
		t.Errorf("signal: %v", err)
	}
	ch, err := h.TaskStats(t.Context(), cfg.ID, time.Second)
	if err != nil {
		t.Fatal(err)
	}
	if usage := <-ch; usage.ResourceUsage.CpuStats == nil || usage.ResourceUsage.MemoryStats == nil {
		t.Errorf("usage %+v, want CPU and memory never nil", usage.ResourceUsage)
	}
	if err := h.StopTask(cfg.ID, time.Hour, ""); err != nil {
		t.Errorf("stop: %v", err)
	}
	if result := h.waited(cfg.ID); !result.Successful() {
		t.Errorf("result %+v: a provider without an orderly stop is no failure of the task", result)
	}
}

func TestSignal(t *testing.T) {
	h := newHarness(t)
	cfg := h.task("1", nil)
	h.start(cfg)
	if err := h.SignalTask(cfg.ID, "SIGHUP"); err != nil {
		t.Fatal(err)
	}
	if got := h.parts.provider.World().Signals(h.parts.names()[0]); len(got) != 1 || got[0] != "SIGHUP" {
		t.Errorf("signals %q", got)
	}
}

func TestStatsAreRates(t *testing.T) {
	h := newHarness(t)
	cfg := h.task("1", nil)
	h.start(cfg)
	m := meter{h: h.store.task(cfg.ID)}
	first := m.read(t.Context())
	if first.ResourceUsage.CpuStats.Percent != 0 || first.ResourceUsage.MemoryStats.RSS != 64<<20 {
		t.Errorf("first reading %+v %+v", first.ResourceUsage.CpuStats, first.ResourceUsage.MemoryStats)
	}
	m.before.At = m.before.At.Add(-10 * time.Second)
	m.before.CPUTime -= time.Second
	second := m.read(t.Context()).ResourceUsage.CpuStats
	if second.Percent < 9.5 || second.Percent > 10.5 {
		t.Errorf("%v%% of a core, want 10%%: one second of work in ten", second.Percent)
	}
	h.parts.provider.Fail(fake.StepStats, 1, errors.New("no figures"))
	if broken := m.read(t.Context()).ResourceUsage; broken.CpuStats == nil || broken.MemoryStats == nil || len(broken.CpuStats.Measured) != 0 {
		t.Errorf("reading that failed: %+v", broken)
	}
}

func TestStatsEndWithTheTask(t *testing.T) {
	h := newHarness(t)
	cfg := h.task("1", nil)
	h.start(cfg)
	ch, err := h.TaskStats(t.Context(), cfg.ID, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	<-ch
	if err := h.DestroyTask(cfg.ID, true); err != nil {
		t.Fatal(err)
	}
	if _, open := <-ch; open {
		t.Error("figures of a task that is gone")
	}
}

func TestCPUInfo(t *testing.T) {
	if got := cpuInfoMHz([]byte("processor\t: 0\ncpu MHz\t\t: 2445.406\ncache size\t: 512 KB\n")); got != 2445.406 {
		t.Errorf("%v MHz", got)
	}
	if got := cpuInfoMHz([]byte("nothing")); got != 0 {
		t.Errorf("%v MHz of nothing", got)
	}
}

func TestFingerprintIsImmediateAndTellsChangesOnly(t *testing.T) {
	h := newHarness(t)
	ch, err := h.Fingerprint(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	first := <-ch
	if first.Health != drivers.HealthStateHealthy {
		t.Errorf("health %v: %s", first.Health, first.HealthDescription)
	}
	for name, want := range map[string]string{
		"driver.egress": "1.2.3", "driver.egress.fake.type": "fake", "driver.egress.fake.ready": "true",
	} {
		if got := first.Attributes[name].GoString(); got != want {
			t.Errorf("attribute %s is %q, want %q", name, got, want)
		}
	}
	select {
	case again := <-ch:
		t.Errorf("told again without a change: %+v", again)
	case <-time.After(300 * time.Millisecond): // three rounds of checks
	}
	h.parts.provider.Fail("check/fake", -1, errors.New("no route to host"))
	for changed := range ch {
		if changed.Health == drivers.HealthStateUnhealthy && changed.Attributes["driver.egress.fake.ready"].GoString() == "false" {
			break
		}
	}
}

func TestFingerprintWithoutProviders(t *testing.T) {
	h := startHarness(t, newParts(t), `state_dir = "%STATE%"`)
	ch, err := h.Fingerprint(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if found := <-ch; found.Health != drivers.HealthStateUndetected || len(found.Attributes) != 0 {
		t.Errorf("fingerprint %+v, want undetected", found)
	}
	if _, _, err := h.StartTask(h.task("1", nil)); err == nil {
		t.Error("a task was started without a provider")
	}
}

func TestTransitionsAreTold(t *testing.T) {
	h := newHarness(t)
	events, err := h.TaskEvents(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	h.start(h.task("1", nil))
	h.parts.probe.say(refuses(probe.StageTLS, "another certificate"))
	for event := range events {
		if strings.Contains(event.Message, "tls: another certificate") {
			break
		}
	}
	entry, _ := h.parts.consul.get(h.parts.names()[0])
	if entry.verdict.OK || entry.verdict.Stage != probe.StageTLS {
		t.Errorf("Consul has %+v, want critical at tls", entry.verdict)
	}
}

func TestEventsNeverHoldUpATask(t *testing.T) {
	e := new(events)
	ctx, cancel := context.WithCancel(t.Context())
	ch := e.listen(ctx)
	for range 10 * eventBuffer {
		e.emit(&drivers.TaskConfig{}, "nobody reads this")
	}
	cancel()
	eventually(t, "the channel is closed, so that the RPC ends", func() bool {
		select {
		case _, open := <-ch:
			return !open
		default:
			return false
		}
	})
	e.emit(&drivers.TaskConfig{}, "after the end")
}
