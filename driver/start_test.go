package driver

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/nomad/nomad/structs"
	"github.com/hashicorp/nomad/plugins/drivers"

	"github.com/egress-proxies/egress/driver/probe"
	"github.com/egress-proxies/egress/provider"
	"github.com/egress-proxies/egress/provider/fake"
)

// recoverable is what the RPC layer sees: the outermost error and no other.
func recoverable(err error) bool {
	bare, ok := err.(structs.Recoverable)
	return ok && bare.IsRecoverable()
}

// nothingLeft is the state after a start that failed.
func (h *harness) nothingLeft() {
	h.t.Helper()
	if left := h.parts.provider.World().Pieces(); left != 0 {
		h.t.Errorf("%d pieces left behind: %q", left, h.parts.names())
	}
	if names := h.parts.consul.names(); len(names) != 0 {
		h.t.Errorf("registrations left behind: %q", names)
	}
	if s, _ := h.current(); len(s.records.all()) != 0 {
		h.t.Errorf("records left behind: %+v", s.records.all())
	}
	if h.store.task("x") != nil || len(h.store.all()) != 0 {
		h.t.Errorf("%d tasks left behind", len(h.store.all()))
	}
}

func TestStartErrorsSayWhetherAnotherTryMayWork(t *testing.T) {
	steps := fake.CreateSteps
	for _, step := range steps {
		for _, class := range []error{provider.ErrTransient, provider.ErrQuotaExceeded, provider.ErrPermanent, errors.New("unclassified")} {
			t.Run(fmt.Sprintf("%s/%v", step, class), func(t *testing.T) {
				h := newHarness(t)
				h.parts.provider.Fail(step, 1, fmt.Errorf("broken at %s: %w", step, class))
				_, _, err := h.StartTask(h.task("1", nil))
				if err == nil || !strings.Contains(err.Error(), "broken at "+string(step)) {
					t.Fatalf("error %v, want the provider's", err)
				}
				if want := !errors.Is(class, provider.ErrPermanent); recoverable(err) != want {
					t.Errorf("recoverable %v, want %v", recoverable(err), want)
				}
				h.nothingLeft()
				h.start(h.task("2", nil))
			})
		}
	}
}

func TestStartThatCannotCleanUpLeavesItToTheCollector(t *testing.T) {
	h := newHarness(t)
	h.parts.provider.Interrupt(fake.StepDefine) // Create fails and leaves pieces
	h.parts.provider.Fail(fake.StepDelete, 3, errors.New("the hypervisor is down"))
	if _, _, err := h.StartTask(h.task("1", nil)); err == nil {
		t.Fatal("the start worked")
	}
	eventually(t, "the collector deletes what the start left", func() bool { return h.parts.provider.World().Pieces() == 0 })
	eventually(t, "the record goes too", func() bool { s, _ := h.current(); return len(s.records.all()) == 0 })
}

func TestCollectorGoesOnInTheNextProcess(t *testing.T) {
	parts := newParts(t)
	h := startHarness(t, parts, testConfig)
	parts.provider.Interrupt(fake.StepDefine)
	parts.provider.Fail(fake.StepDelete, -1, errors.New("the hypervisor is down"))
	if _, _, err := h.StartTask(h.task("1", nil)); err == nil {
		t.Fatal("the start worked")
	}
	if err := h.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	parts.provider.Fail(fake.StepDelete, 0, nil)
	next := startHarness(t, parts, testConfig)
	if _, err := next.Fingerprint(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the next process deletes what is left", func() bool { return parts.provider.World().Pieces() == 0 })
}

func TestStartTimeout(t *testing.T) {
	tests := []struct {
		name  string
		stick func(*harness)
		want  string
	}{
		{"create hangs", func(h *harness) { h.parts.provider.Hold(fake.StepDisk) }, "start_timeout 5s is over while launching"},
		{"no address", func(h *harness) { h.parts.provider.Hold(fake.StepAddress) },
			"start_timeout 5s is over while waiting for an address: the instance is provisioning and has no address yet"},
		{"probe fails", func(h *harness) { h.parts.probe.say(refuses(probe.StageAuth, "the proxy answered 407")) },
			"start_timeout 5s is over while waiting for the probe: the proxy does not pass its probe: auth: the proxy answered 407"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel() // each waits
			h := newHarness(t)
			test.stick(h)
			_, _, err := h.StartTask(h.task("1", map[string]any{"start_timeout": "5s"}))
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Fatalf("error %v, want %q", err, test.want)
			}
			if !recoverable(err) {
				t.Error("not recoverable: another try may work")
			}
			h.nothingLeft()
		})
	}
}

func TestStartWaitsForAnAddressThatComesLate(t *testing.T) {
	h := newHarness(t)
	cfg := h.task("1", nil)
	name := provider.Name("default", cfg.AllocID, "proxy")
	// The instance loses its address as soon as it has one.
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				h.parts.provider.World().SetAddress(name, "")
				time.Sleep(50 * time.Microsecond)
			}
		}
	})
	time.AfterFunc(20*time.Millisecond, func() {
		close(stop)
		wg.Wait()
		h.parts.provider.World().SetAddress(name, "192.0.2.9")
	})
	_, network := h.start(cfg)
	if network.IP != "192.0.2.9" && network.IP != "127.0.0.1" {
		t.Errorf("network %+v", network)
	}
}

func TestInstanceThatEndsWhileStartingFailsTheStartAtOnce(t *testing.T) {
	h := newHarness(t)
	h.parts.probe.say(refuses(probe.StageTCP, "connection refused"))
	cfg := h.task("1", map[string]any{"start_timeout": "1h"})
	name := provider.Name("default", cfg.AllocID, "proxy")
	failed := make(chan error, 1)
	go func() {
		_, _, err := h.StartTask(cfg)
		failed <- err
	}()
	eventually(t, "the instance runs and is probed", h.parts.probe.asked)
	h.parts.provider.World().End(name, provider.Exit{Code: 3}, "squid: bad config")
	err := <-failed
	if err == nil || !strings.Contains(err.Error(), "exit code 3") || !strings.Contains(err.Error(), "squid: bad config") {
		t.Errorf("error %v, want the exit code and the reason", err)
	}
	h.nothingLeft()
}

// Case 2: the plugin is killed in the middle of a start.
func TestSameTaskIDIsAdoptedAfterAPluginCrash(t *testing.T) {
	for _, step := range fake.CreateSteps {
		t.Run(string(step), func(t *testing.T) {
			parts := newParts(t)
			h := startHarness(t, parts, testConfig)
			_, release := parts.provider.Hold(step)
			defer release()
			died := make(chan struct{})
			go func() {
				defer close(died)
				_, _, _ = h.StartTask(h.task("1", nil))
			}()
			eventually(t, "the start is under way", func() bool { s, _ := h.current(); return len(s.records.all()) == 1 })
			crash(t, h)
			<-died
			release()

			next := startHarness(t, parts, testConfig)
			next.start(next.task("1", nil))
			if names := parts.names(); len(names) != 1 {
				t.Errorf("instances %q, want one", names)
			}
		})
	}
}

// A crash right after the instance was started: it is the same one afterwards.
func TestAdoptedInstanceIsTheSame(t *testing.T) {
	parts := newParts(t)
	h := startHarness(t, parts, testConfig)
	parts.probe.say(refuses(probe.StageTCP, "connection refused"))
	died := make(chan struct{})
	go func() {
		defer close(died)
		_, _, _ = h.StartTask(h.task("1", nil))
	}()
	eventually(t, "the instance runs and is probed", parts.probe.asked)
	crash(t, h)
	<-died
	parts.probe.say(works)
	next := startHarness(t, parts, testConfig)
	next.start(next.task("1", nil))
	if made := parts.provider.World().Created(); made != 1 {
		t.Errorf("%d instances were made, want the first to be adopted", made)
	}
}

// crash ends a plugin without any of its cleaning up.
func crash(t *testing.T, h *harness) {
	t.Helper()
	if err := h.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
}

// Case 1: the agent is killed in the middle of a start, and its successor, which
// knows nothing of it, starts the task under another id.
func TestOtherTaskIDTakesOverFromAStartInFlight(t *testing.T) {
	h := newHarness(t)
	reached, release := h.parts.provider.Hold(fake.StepStart)
	first := make(chan error, 1)
	go func() {
		_, _, err := h.StartTask(h.task("1", nil))
		first <- err
	}()
	<-reached
	second := make(chan error, 1)
	go func() {
		_, _, err := h.StartTask(h.task("2", nil))
		second <- err
	}()
	if err := <-first; err == nil || !strings.Contains(err.Error(), errSuperseded.Error()) {
		t.Errorf("the first start: %v, want it given up", err)
	}
	release()
	if err := <-second; err != nil {
		t.Errorf("the second start: %v", err)
	}
	if names := h.parts.names(); len(names) != 1 {
		t.Errorf("instances %q, want one", names)
	}
	if len(h.store.all()) != 1 || h.store.task(h.task("2", nil).ID) == nil {
		t.Errorf("tasks %v, want the second alone", h.store.all())
	}
}

// The agent was killed between the plugin's answer and writing it down.
func TestOtherTaskIDReplacesARunningTask(t *testing.T) {
	h := newHarness(t)
	h.start(h.task("1", nil))
	h.start(h.task("2", nil))
	if made, names := h.parts.provider.World().Created(), h.parts.names(); made != 2 || len(names) != 1 {
		t.Errorf("%d instances made, %q left; want the old one gone and a new one", made, names)
	}
	if _, err := h.InspectTask(h.task("1", nil).ID); !errors.Is(err, drivers.ErrTaskNotFound) {
		t.Errorf("the first task: %v, want it unknown", err)
	}
	if names := h.parts.consul.names(); len(names) != 1 {
		t.Errorf("registered %q, want one", names)
	}
	// Nomad may still destroy the first id: the second must not suffer.
	if err := h.DestroyTask(h.task("1", nil).ID, true); err != nil {
		t.Errorf("destroy of the first: %v", err)
	}
	if names := h.parts.names(); len(names) != 1 {
		t.Errorf("instances after the destroy of the first id: %q, want the second's", names)
	}
}

// The same after a restart of the plugin, of which only the disk knows.
func TestOtherTaskIDAfterAPluginCrashRedoes(t *testing.T) {
	parts := newParts(t)
	h := startHarness(t, parts, testConfig)
	h.start(h.task("1", nil))
	crash(t, h)
	next := startHarness(t, parts, testConfig)
	next.start(next.task("2", nil))
	if made, names := parts.provider.World().Created(), parts.names(); made != 2 || len(names) != 1 {
		t.Errorf("%d instances made, %q left; want the old one gone and a new one", made, names)
	}
}

func TestConcurrentStartsOfOneTaskShareOneInstance(t *testing.T) {
	h := newHarness(t)
	_, release := h.parts.provider.Hold(fake.StepDefine)
	time.AfterFunc(10*time.Millisecond, release)
	var wg sync.WaitGroup
	for range 10 {
		wg.Go(func() {
			if _, _, err := h.StartTask(h.task("1", nil)); err != nil {
				t.Errorf("start: %v", err)
			}
		})
	}
	wg.Wait()
	if made := h.parts.provider.World().Created(); made != 1 {
		t.Errorf("%d instances were made, want 1", made)
	}
}

func TestConcurrentStartsUnderManyIDsLeaveOneInstance(t *testing.T) {
	h := newHarness(t)
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() { _, _, _ = h.StartTask(h.task(fmt.Sprint(i), nil)) })
	}
	wg.Wait()
	if names := h.parts.names(); len(names) != 1 || len(h.store.all()) != 1 {
		t.Errorf("instances %q, tasks %d, want one of each", names, len(h.store.all()))
	}
}

// Case 3: a job that is stopped in the middle of a start is stopped after it.
func TestDestroyCancelsAStartInFlight(t *testing.T) {
	h := newHarness(t)
	reached, release := h.parts.provider.Hold(fake.StepSeed)
	defer release()
	cfg := h.task("1", nil)
	failed := make(chan error, 1)
	go func() {
		_, _, err := h.StartTask(cfg)
		failed <- err
	}()
	<-reached
	if err := h.DestroyTask(cfg.ID, true); err != nil {
		t.Errorf("destroy: %v", err)
	}
	if err := <-failed; err == nil {
		t.Error("the start worked")
	}
	h.nothingLeft()
}

func TestStartTellsAtMostSixEvents(t *testing.T) {
	var told []string
	now := time.Unix(0, 0)
	p := &progress{emit: func(message string) { told = append(told, message) }, now: func() time.Time { return now }}
	p.say("Launching")
	for percent := range 100 {
		now = now.Add(5 * time.Second)
		p.report(fmt.Sprintf("fetching the image: %d%%", percent))
	}
	p.say("Proxy is at 192.0.2.1, probing it")
	for range 100 {
		now = now.Add(5 * time.Second)
		p.report("Waiting for the proxy to pass its probe")
	}
	p.say("one more")
	p.say("one too many")
	if len(told) != maxProgress {
		t.Errorf("%d events, want %d: %q", len(told), maxProgress, told)
	}
	if !strings.Contains(told[1], "fetching the image: 0%") || !strings.Contains(told[3], "%") {
		t.Errorf("events %q, want the progress of a long step among them", told)
	}
}

func TestStartEventsReachTheAgent(t *testing.T) {
	h := newHarness(t)
	events, err := h.TaskEvents(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	cfg := h.task("1", nil)
	h.start(cfg)
	event := <-events
	if event.TaskID != cfg.ID || event.AllocID != cfg.AllocID || event.TaskName != "proxy" ||
		!strings.Contains(event.Message, "with provider fake") {
		t.Errorf("event %+v", event)
	}
}
