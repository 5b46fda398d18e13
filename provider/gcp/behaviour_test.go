package gcp

import (
	"context"
	"errors"
	"io"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/egress-proxies/egress/provider"
	"github.com/egress-proxies/egress/provider/gcp/computetest"
)

func mustCreate(t *testing.T, p *Provider, s provider.Spec) provider.Instance {
	t.Helper()
	instance, err := p.Create(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	return instance
}

func TestNextZoneOnAStockout(t *testing.T) {
	stockout := &computetest.OperationError{Code: "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS", Message: "no e2-small left", Status: 503}
	quota := &computetest.OperationError{Code: "QUOTA_EXCEEDED", Message: "Quota 'CPUS' exceeded."}
	zones := []any{"europe-west1-b", "europe-west1-c", "us-east1-b"}
	for name, tc := range map[string]struct {
		faults []computetest.Fault
		zone   string // "" is a refusal
		says   []string
	}{
		"every zone is full": {[]computetest.Fault{{Call: "instances.insert", Operation: stockout}}, "", []string{"europe-west1-b", "us-east1-b", "no e2-small left"}},
		"a permission is not tried elsewhere": {[]computetest.Fault{{Call: "instances.insert", Zone: "europe-west1-b", Status: 403, Reason: "forbidden", Message: "no permission"}}, "",
			[]string{"no permission"}},
		"one zone is full":                {[]computetest.Fault{{Call: "instances.insert", Zone: "europe-west1-b", Operation: stockout}}, "europe-west1-c", nil},
		"a quota is counted by region":    {[]computetest.Fault{{Call: "instances.insert", Zone: "europe-west1-b", Operation: quota}}, "us-east1-b", nil},
		"a stockout told with the insert": {[]computetest.Fault{{Call: "instances.insert", Zone: "europe-west1-b", Status: 503, Message: "The zone 'x' does not have enough resources available to fulfill the request."}}, "europe-west1-c", nil},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, computetest.Config{})
			for _, fault := range tc.faults {
				w.Fail(fault)
			}
			got, err := w.in(t, map[string]any{"zones": zones}).Create(t.Context(), named(t))
			if got.Zone != tc.zone || (err == nil) != (tc.zone != "") {
				t.Errorf("made in %q, %v, want %q", got.Zone, err, tc.zone)
			}
			for _, part := range tc.says {
				if err == nil || !strings.Contains(err.Error(), part) {
					t.Errorf("%v doesn't mention %q", err, part)
				}
			}
			if left := len(w.Machines()); left > 1 || tc.zone == "" && left > 0 {
				t.Errorf("%d machines are left", left)
			}
		})
	}
}

func TestTaskChoosesItsZone(t *testing.T) {
	w := newWorld(t, computetest.Config{})
	s := named(t)
	s.Zone = "us-east1-b"
	if got := mustCreate(t, w.provider(t, "contract"), s); got.Zone != s.Zone {
		t.Errorf("made in %s, want %s", got.Zone, s.Zone)
	}
}

func TestRetriesMakeOneMachine(t *testing.T) {
	for name, fault := range map[string]computetest.Fault{
		"rate limit":       {Call: "instances.insert", Times: 2, Status: 429, Reason: "rateLimitExceeded", Message: "slow down"},
		"answer cut off":   {Call: "instances.insert", Times: 1, After: true, Truncate: true},
		"connection lost":  {Call: "instances.insert", Times: 1, After: true, Cut: true},
		"error of Google":  {Call: "instances.insert", Times: 1, After: true, Status: 500, Message: "Internal error"},
		"wait unavailable": {Call: "zoneOperations.wait", Times: 2, Status: 503, Message: "unavailable"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, computetest.Config{})
			w.Fail(fault)
			s := named(t)
			mustCreate(t, w.provider(t, "contract"), s)
			if n := w.Count(s.Name); n != 2 {
				t.Errorf("%d machines and disks, want one of each", n)
			}
			if calls := w.Calls(); slices.Contains(calls, "instances.delete") {
				t.Errorf("a machine was made and removed on the way: %q", calls)
			}
		})
	}
}

// A name has several machines within the hour in which Google remembers the
// requests: a restarted task, also after a restart of the plugin.
func TestMachineAfterMachine(t *testing.T) {
	w := newWorld(t, computetest.Config{})
	s := named(t)
	ids := map[string]bool{}
	for round := range 4 {
		p := w.provider(t, "contract") // has forgotten what was before
		instance := mustCreate(t, p, s)
		if ids[instance.ID] || w.Count(s.Name) != 2 {
			t.Fatalf("round %d: machine %s is an old one, or not there", round, instance.ID)
		}
		ids[instance.ID] = true
		if err := p.Delete(t.Context(), instance.Ref); err != nil {
			t.Fatal(err)
		}
	}
}

func TestAlreadyThere(t *testing.T) {
	w := newWorld(t, computetest.Config{})
	s := named(t)
	p := w.provider(t, "contract")
	first := mustCreate(t, p, s)
	// The list lags behind: the insert says 409.
	w.Silence("us-east1-b")
	w.SetLabel(s.Name, "egress-cluster", "other")
	if _, err := p.Create(t.Context(), s); provider.Classify(err) != provider.ErrPermanent || !strings.Contains(err.Error(), s.Name) {
		t.Errorf("somebody else's machine: %v, want ErrPermanent with its name", err)
	}
	if err := p.Delete(t.Context(), first.Ref); provider.Classify(err) != provider.ErrPermanent || w.Count(s.Name) != 2 {
		t.Errorf("delete of somebody else's machine: %v, want ErrPermanent and the machine kept", err)
	}
}

func TestConflictAdoptsOurs(t *testing.T) {
	w := newWorld(t, computetest.Config{})
	s := named(t)
	first := mustCreate(t, w.provider(t, "contract"), s)
	instance, err := w.provider(t, "contract").launch(t.Context(), s, first.Zone)
	if err != nil || instance.ID != first.ID {
		t.Errorf("%v, %v, want the first machine %s", instance.ID, err, first.ID)
	}
	p := w.provider(t, "contract")
	p.attempts.next(s.Name) // a request id that Google has not seen: 409
	if instance, err = p.launch(t.Context(), s, first.Zone); err != nil || instance.ID != first.ID {
		t.Errorf("after a 409: %v, %v, want the first machine %s", instance.ID, err, first.ID)
	}
}

func TestZonesThatCanNotBeListed(t *testing.T) {
	w := newWorld(t, computetest.Config{PageSize: 1})
	p := w.provider(t, "contract")
	s := named(t)
	w.Silence("europe-west1-c")
	if _, err := p.List(t.Context()); err == nil || !strings.Contains(err.Error(), "europe-west1-c") {
		t.Errorf("list: %v, want an error that names the zone", err)
	}
	if _, err := p.Get(t.Context(), provider.Ref{Name: s.Name}); err == nil || errors.Is(err, provider.ErrNotFound) {
		t.Errorf("get: %v, want an error that isn't ErrNotFound", err)
	}
	if _, err := p.Create(t.Context(), s); provider.Classify(err) != provider.ErrTransient || w.Count(s.Name) != 0 {
		t.Errorf("create: %v, want ErrTransient: the machine may be in that zone", err)
	}
	if err := p.Delete(t.Context(), provider.Ref{Name: s.Name}); err == nil {
		t.Error("delete: want an error: the machine may be in that zone")
	}
	w.Silence("us-east1-b") // where nothing of ours can be
	mustCreate(t, p, s)
}

func TestStatusOfAMachine(t *testing.T) {
	w := newWorld(t, computetest.Config{})
	p := w.provider(t, "contract")
	s := named(t)
	ref := mustCreate(t, p, s).Ref
	for status, want := range map[string]provider.State{
		"PENDING": provider.Provisioning, "PROVISIONING": provider.Provisioning, "STAGING": provider.Provisioning,
		"RUNNING": provider.Running, "STOPPING": provider.Stopped, "SUSPENDING": provider.Stopped,
		"SUSPENDED": provider.Stopped, "TERMINATED": provider.Stopped, "STOPPED": provider.Stopped,
		"REPAIRING": provider.Unknown, "LEVITATING": provider.Unknown,
	} {
		w.SetStatus(s.Name, status)
		got, err := p.Get(t.Context(), ref)
		if err != nil || got.State != want {
			t.Errorf("%s is %s, %v, want %s", status, got.State, err, want)
		}
		if want != provider.Running && want != provider.Provisioning && got.Reason == "" {
			t.Errorf("%s has no reason", status)
		}
	}
}

func TestEndings(t *testing.T) {
	for name, tc := range map[string]struct {
		end  func(w *world, name string)
		want string
	}{
		"preempted":             {func(w *world, name string) { w.Preempt(name, false) }, "preempted"},
		"preempted and deleted": {func(w *world, name string) { w.Preempt(name, true) }, "preempted"},
		"removed by hand":       {func(w *world, name string) { w.Remove(name) }, "somebody@example.com"},
		"shut down":             {func(w *world, name string) { w.Shutdown(name) }, "its guest shut it down"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, computetest.Config{})
			p := w.in(t, map[string]any{"provisioning": "spot"})
			s := named(t)
			changes, err := p.Watch(t.Context(), mustCreate(t, p, s).Ref)
			if err != nil {
				t.Fatal(err)
			}
			if first := <-changes; first.State != provider.Running {
				t.Errorf("first seen as %s, want running", first.State)
			}
			w.SetAddress(s.Name, "198.51.100.7")
			if moved := <-changes; moved.Address != "198.51.100.7" {
				t.Errorf("address is %s, want the new one", moved.Address)
			}
			w.Fail(computetest.Fault{Call: "instances.aggregatedList", Times: 5, Status: 503, Message: "unavailable"})
			tc.end(w, s.Name)
			last := <-changes
			if last.State != provider.Stopped || !strings.Contains(last.Reason, tc.want) {
				t.Errorf("ended as %s: %q, want it to say %q", last.State, last.Reason, tc.want)
			}
			if _, more := <-changes; more {
				t.Error("the watch goes on after the end")
			}
		})
	}
}

func TestStopIsNoFailure(t *testing.T) {
	w := newWorld(t, computetest.Config{Delay: 50 * time.Millisecond})
	p := w.provider(t, "contract")
	ref := mustCreate(t, p, named(t)).Ref
	if err := p.Stop(t.Context(), ref, ""); err != nil {
		t.Fatal(err)
	}
	if got, err := p.Get(t.Context(), ref); err != nil || got.State != provider.Stopping {
		t.Errorf("%s, %v after the stop, want stopping: the guest has its time", got.State, err)
	}
	if err := p.Delete(t.Context(), ref); err != nil {
		t.Fatal(err)
	}
	if err := p.Stop(t.Context(), ref, ""); err != nil {
		t.Errorf("stop of what is gone: %v, want success", err)
	}
}

func TestConsoleFollowsTheSerialPort(t *testing.T) {
	w := newWorld(t, computetest.Config{})
	p := w.provider(t, "contract")
	s := named(t)
	ref := mustCreate(t, p, s).Ref
	w.Print(s.Name, "first ")
	reader, err := p.Console(t.Context(), ref, 2)
	if err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 100)
	if n, err := reader.Read(b); err != nil || string(b[:n]) != "rst " {
		t.Fatalf("%q, %v", b[:n], err)
	}
	w.Print(s.Name, "second")
	w.Shutdown(s.Name)
	if _, err := p.Get(t.Context(), ref); err != nil { // what the watch does
		t.Fatal(err)
	}
	rest, err := io.ReadAll(reader)
	if err != nil || string(rest) != "second" {
		t.Errorf("%q, %v, want the last words and the end", rest, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	w.SetStatus(s.Name, "RUNNING")
	tail, err := p.Console(ctx, ref, -1)
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	if _, err := tail.Read(b); !errors.Is(err, context.Canceled) {
		t.Errorf("%v, want the context's error", err)
	}
}

func TestLogsAndErrorsHoldNoSecrets(t *testing.T) {
	w := newWorld(t, computetest.Config{})
	var log strings.Builder
	w.logger = hclog.New(&hclog.LoggerOptions{Output: &log, Level: hclog.Trace, JSONFormat: true})
	p := w.provider(t, "contract")
	s := named(t)
	s.UserData = []byte("#cloud-config\npassword: hunter2\n")
	ref := mustCreate(t, p, s).Ref
	w.Print(s.Name, "guest says hunter2")
	reader, err := p.Console(t.Context(), ref, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := reader.Read(make([]byte, 10)); err != nil {
		t.Fatal(err)
	}
	_ = reader.Close()
	text := log.String()
	for _, secret := range []string{"hunter2", "token-", "Bearer", "PRIVATE KEY", "assertion="} {
		if strings.Contains(text, secret) {
			t.Errorf("the log has %q", secret)
		}
	}
	for _, part := range []string{"instances", "requestId", "machineType", `"status":200`} {
		if !strings.Contains(text, part) {
			t.Errorf("the log lacks %q:\n%s", part, text)
		}
	}
}

func TestCredentialsAreReadAgain(t *testing.T) {
	w := newWorld(t, computetest.Config{})
	good, err := os.ReadFile(w.credentials)
	if err != nil {
		t.Fatal(err)
	}
	p := w.provider(t, "contract")
	if err := os.Remove(w.credentials); err != nil {
		t.Fatal(err)
	}
	if _, err := p.List(t.Context()); provider.Classify(err) != provider.ErrTransient {
		t.Errorf("a missing file: %v, want ErrTransient: it may appear later", err)
	}
	write := func(content []byte, age time.Duration) {
		if err := os.WriteFile(w.credentials, content, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(w.credentials, time.Time{}, time.Now().Add(-age)); err != nil {
			t.Fatal(err)
		}
	}
	write([]byte("hunter2"), time.Hour)
	if _, err := p.List(t.Context()); provider.Classify(err) != provider.ErrPermanent || strings.Contains(err.Error(), "hunter2") {
		t.Errorf("a broken file: %v, want ErrPermanent without its content", err)
	}
	write(good, time.Minute)
	if _, err := p.List(t.Context()); err != nil {
		t.Errorf("a good file: %v", err)
	}
}

func TestCancelledCallReturns(t *testing.T) {
	w := newWorld(t, computetest.Config{})
	w.Fail(computetest.Fault{Call: "instances.aggregatedList", Stall: true})
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	began := time.Now()
	if _, err := w.provider(t, "contract").List(ctx); provider.Classify(err) != provider.ErrTransient {
		t.Errorf("%v, want ErrTransient", err)
	}
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("returned after %s", took)
	}
}
