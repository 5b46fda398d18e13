package driver

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/plugins/drivers"

	"github.com/egress-proxies/egress/driver/probe"
	"github.com/egress-proxies/egress/provider"
	"github.com/egress-proxies/egress/provider/fake"
)

func TestStopSendsTheKillSignalAfterDeregistering(t *testing.T) {
	h := newHarness(t)
	cfg := h.task("1", nil)
	h.start(cfg)
	name := h.parts.names()[0]
	reached, release := h.parts.provider.Hold(fake.StepStop)
	stopped := make(chan error, 1)
	go func() { stopped <- h.StopTask(cfg.ID, time.Minute, "SIGUSR1") }()
	<-reached
	if names := h.parts.consul.names(); len(names) != 0 {
		t.Errorf("registered while the instance is asked to stop: %q", names)
	}
	release()
	if err := <-stopped; err != nil {
		t.Fatal(err)
	}
	if signals := h.parts.provider.World().Signals(name); !slices.Equal(signals, []string{"SIGUSR1"}) {
		t.Errorf("signals %q", signals)
	}
	if result := h.waited(cfg.ID); !result.Successful() {
		t.Errorf("result %+v, want success", result)
	}
}

// Case 9.
func TestStopForcesAtTheTimeout(t *testing.T) {
	h := newHarness(t)
	h.parts.provider.IgnoreStop()
	cfg := h.task("1", nil)
	h.start(cfg)
	began := time.Now()
	if err := h.StopTask(cfg.ID, 30*time.Millisecond, ""); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(began); took < 30*time.Millisecond || took > patience {
		t.Errorf("stopped after %v, want the timeout of 30ms and little more", took)
	}
	if names := h.parts.names(); len(names) != 0 {
		t.Errorf("instances %q, want none", names)
	}
	result := h.waited(cfg.ID)
	if result.Signal != 9 || result.Err == nil || !strings.Contains(result.Err.Error(), "kill_timeout 30ms") {
		t.Errorf("result %+v, want killed, with the reason", result)
	}
}

// Case 8.
func TestStopOfWhatIsGoneIsImmediate(t *testing.T) {
	h := newHarness(t)
	cfg := h.task("1", nil)
	h.start(cfg)
	h.parts.provider.World().Vanish(h.parts.names()[0])
	if err := h.StopTask(cfg.ID, time.Hour, ""); err != nil {
		t.Errorf("stop: %v", err)
	}
	if err := h.StopTask(cfg.ID, time.Hour, ""); err != nil {
		t.Errorf("second stop: %v", err)
	}
	if err := h.StopTask("alloc/never/seen", time.Hour, ""); err != nil {
		t.Errorf("stop of a task that was never seen: %v", err)
	}
}

func TestStopDrains(t *testing.T) {
	h := newHarness(t)
	cfg := h.task("1", map[string]any{"drain": "50ms"})
	h.start(cfg)
	began := time.Now()
	if err := h.StopTask(cfg.ID, time.Minute, ""); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(began); took < 50*time.Millisecond {
		t.Errorf("stopped after %v, want the clients to have 50ms", took)
	}
}

func TestStopThatCannotDeleteFailsAndIsCollected(t *testing.T) {
	h := newHarness(t)
	h.parts.provider.IgnoreStop()
	cfg := h.task("1", nil)
	h.start(cfg)
	h.parts.provider.Fail(fake.StepDelete, 3, errors.New("the hypervisor is down"))
	if err := h.StopTask(cfg.ID, time.Millisecond, ""); err == nil || !strings.Contains(err.Error(), "the hypervisor is down") {
		t.Fatalf("stop: %v, want an error, so that Nomad tries again", err)
	}
	if result := h.waited(cfg.ID); result == nil {
		t.Error("no result once the collector has deleted the instance")
	}
	if names := h.parts.names(); len(names) != 0 {
		t.Errorf("instances %q, want none", names)
	}
}

func TestStopIsNotHeldUpByConsul(t *testing.T) {
	h := newHarness(t)
	h.timing.deregister = 20 * time.Millisecond
	cfg := h.task("1", nil)
	h.start(cfg)
	h.parts.consul.mu.Lock()
	h.parts.consul.down = true
	h.parts.consul.mu.Unlock()
	if err := h.StopTask(cfg.ID, time.Minute, ""); err != nil {
		t.Errorf("stop: %v", err)
	}
}

// Case 18: what a probe that was under way finds comes too late.
func TestNoProbeResultAfterTheStop(t *testing.T) {
	h := newHarness(t)
	cfg := h.task("1", nil)
	h.start(cfg)
	eventually(t, "the proxy is registered", func() bool { return len(h.parts.consul.names()) == 1 })
	if err := h.StopTask(cfg.ID, time.Minute, ""); err != nil {
		t.Fatal(err)
	}
	h.parts.probe.say(refuses(probe.StageTCP, "connection refused"))
	h.parts.probe.say(works)
	if err := h.DestroyTask(cfg.ID, false); err != nil {
		t.Fatal(err)
	}
	if names := h.parts.consul.names(); len(names) != 0 {
		t.Errorf("registered again: %q", names)
	}
}

func TestWaitGivesOneResultToEveryCaller(t *testing.T) {
	h := newHarness(t)
	cfg := h.task("1", nil)
	h.start(cfg)
	var waits []<-chan *drivers.ExitResult
	for range 5 {
		ch, err := h.WaitTask(t.Context(), cfg.ID)
		if err != nil {
			t.Fatal(err)
		}
		waits = append(waits, ch)
	}
	h.parts.provider.World().End(h.parts.names()[0], provider.Exit{Signal: 9, OOMKilled: true}, "out of memory")
	for _, ch := range waits {
		result := <-ch
		if result == nil || result.Signal != 9 || !result.OOMKilled || result.Err == nil {
			t.Errorf("result %+v, want how and why it ended", result)
		}
	}
	if late := h.waited(cfg.ID); late.Signal != 9 {
		t.Errorf("result for a late caller: %+v", late)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	ch, err := h.WaitTask(ctx, cfg.ID)
	if err != nil {
		t.Fatal(err)
	}
	if result := <-ch; result == nil {
		t.Error("a caller that gives up is given a closed channel, which panics the agent")
	}
}

func TestEndOfTheInstanceDeregisters(t *testing.T) {
	h := newHarness(t)
	cfg := h.task("1", nil)
	h.start(cfg)
	h.parts.provider.World().End(h.parts.names()[0], provider.Exit{Code: 1}, "crashed")
	h.waited(cfg.ID)
	eventually(t, "the registration is gone", func() bool { return len(h.parts.consul.names()) == 0 })
}

func TestErrorsOfTheProviderAreNoEnd(t *testing.T) {
	h := newHarness(t)
	cfg := h.task("1", nil)
	h.start(cfg)
	for _, class := range []error{provider.ErrTransient, provider.ErrPermanent, provider.ErrQuotaExceeded} {
		h.parts.provider.Fail(fake.StepWatch, 5, class)
		h.parts.provider.Fail(fake.StepGet, 5, class)
		h.parts.provider.World().Print(h.parts.names()[0], "wake the watchers\n")
	}
	status, err := h.InspectTask(cfg.ID)
	if err != nil || status.State != drivers.TaskStateRunning {
		t.Errorf("status %+v, %v, want running", status, err)
	}
}

func TestDestroyByTheIDAlone(t *testing.T) {
	parts := newParts(t)
	h := startHarness(t, parts, testConfig)
	cfg := h.task("1", nil)
	h.start(cfg)
	crash(t, h)
	next := startHarness(t, parts, testConfig)
	if err := next.DestroyTask(cfg.ID, true); err != nil {
		t.Fatal(err)
	}
	next.nothingLeft()
	if err := next.DestroyTask(cfg.ID, true); err != nil {
		t.Errorf("second destroy: %v", err)
	}
}

// Without its state directory, the plugin asks every provider.
func TestDestroyByTheIDAloneWithoutARecord(t *testing.T) {
	parts := newParts(t)
	h := startHarness(t, parts, testConfig)
	cfg := h.task("1", nil)
	h.start(cfg)
	crash(t, h)
	parts.state = t.TempDir()
	next := startHarness(t, parts, testConfig)
	if err := next.DestroyTask(cfg.ID, true); err != nil {
		t.Fatal(err)
	}
	next.nothingLeft()
}

func TestDestroyOfARunningTaskNeedsForce(t *testing.T) {
	h := newHarness(t)
	cfg := h.task("1", nil)
	h.start(cfg)
	if err := h.DestroyTask(cfg.ID, false); err == nil {
		t.Error("destroyed without force")
	}
	ch, err := h.WaitTask(t.Context(), cfg.ID)
	if err != nil {
		t.Fatal(err)
	}
	if err := h.DestroyTask(cfg.ID, true); err != nil {
		t.Fatal(err)
	}
	if result := <-ch; result == nil {
		t.Error("the waiting agent was given no result")
	}
	h.nothingLeft()
}

func TestDestroyIsBounded(t *testing.T) {
	h := newHarness(t)
	h.timing.destroy = 50 * time.Millisecond
	cfg := h.task("1", nil)
	h.start(cfg)
	_, release := h.parts.provider.Hold(fake.StepDelete)
	began := time.Now()
	if err := h.DestroyTask(cfg.ID, true); err == nil {
		t.Error("destroyed while the provider hangs")
	}
	if took := time.Since(began); took > patience {
		t.Errorf("took %v", took)
	}
	release()
	eventually(t, "the collector finishes it", func() bool { return h.parts.provider.World().Pieces() == 0 })
}
