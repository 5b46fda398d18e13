package driver

import (
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

// forgotten is a handle as an agent hands it over after its restart: what a
// TaskConfig encodes is lost, since the field isn't exported (case 5).
func forgotten(handle *drivers.TaskHandle) *drivers.TaskHandle {
	copied := handle.Copy()
	copied.Config = &drivers.TaskConfig{
		ID: handle.Config.ID, AllocID: handle.Config.AllocID, Name: handle.Config.Name,
		JobID: handle.Config.JobID, AllocDir: handle.Config.AllocDir,
	}
	return copied
}

// restarted starts a task, crashes the plugin and makes the next one.
func restarted(t *testing.T, config map[string]any) (*parts, *harness, *drivers.TaskHandle) {
	t.Helper()
	parts := newParts(t)
	h := startHarness(t, parts, testConfig)
	handle, _ := h.start(h.task("1", config))
	crash(t, h)
	return parts, startHarness(t, parts, testConfig), forgotten(handle)
}

func TestRecoverGoesOnWithTheTask(t *testing.T) {
	parts, h, handle := restarted(t, map[string]any{
		"attributes": map[string]any{"country": "DE"}, "max_leases": 7, "drain": "1ms",
	})
	if names := parts.consul.names(); len(names) != 1 {
		t.Fatalf("registered while no plugin runs: %q, want the task still there", names)
	}
	if err := h.RecoverTask(handle); err != nil {
		t.Fatal(err)
	}
	if err := h.RecoverTask(handle); err != nil {
		t.Fatalf("a second time: %v", err)
	}
	if made := parts.provider.World().Created(); made != 1 {
		t.Errorf("%d instances were made: recovery started one", made)
	}
	status, err := h.InspectTask(handle.Config.ID)
	if err != nil || status.State != drivers.TaskStateRunning || status.NetworkOverride.IP != "127.0.0.1" ||
		status.NetworkOverride.PortMap["proxy"] != 25000 {
		t.Errorf("status %+v %v", status, err)
	}
	name := parts.names()[0]
	eventually(t, "the proxy is registered as it was", func() bool {
		entry, ok := parts.consul.get(name)
		return ok && entry.endpoint.MaxLeases == 7 && entry.endpoint.Attributes["country"] == "DE" &&
			entry.endpoint.Alloc == handle.Config.AllocID && entry.endpoint.Port == 25000
	})
	if len(h.store.all()) != 1 {
		t.Errorf("%d tasks", len(h.store.all()))
	}
	if err := h.StopTask(handle.Config.ID, time.Minute, ""); err != nil {
		t.Error(err)
	}
	if result := h.waited(handle.Config.ID); !result.Successful() {
		t.Errorf("result %+v", result)
	}
}

// A restarted plugin doesn't know the verdict, and must not make a passing
// check critical by registering again.
func TestRecoverRegistersWithoutAVerdict(t *testing.T) {
	parts, h, handle := restarted(t, nil)
	parts.consul.mu.Lock()
	parts.consul.verdicts = nil
	parts.consul.mu.Unlock()
	if err := h.RecoverTask(handle); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it is registered again", func() bool {
		parts.consul.mu.Lock()
		defer parts.consul.mu.Unlock()
		return len(parts.consul.verdicts) > 0
	})
	parts.consul.mu.Lock()
	defer parts.consul.mu.Unlock()
	if first := parts.consul.verdicts[0]; first.Known() {
		t.Errorf("registered with %+v, want the verdict unknown", first)
	}
}

func TestRecoverAsksNobody(t *testing.T) {
	parts, h, handle := restarted(t, nil)
	for _, step := range []fake.Step{fake.StepGet, fake.StepWatch} {
		_, release := parts.provider.Hold(step)
		defer release()
	}
	began := time.Now()
	if err := h.RecoverTask(handle); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(began); took >= h.timing.get {
		t.Errorf("took %v with a provider that hangs, want it not to be asked", took)
	}
}

func TestRecoveredTaskWhoseInstanceIsGoneEnds(t *testing.T) {
	parts, h, handle := restarted(t, nil)
	parts.provider.World().Vanish(parts.names()[0])
	if err := h.RecoverTask(handle); err != nil {
		t.Fatal(err)
	}
	result := h.waited(handle.Config.ID)
	if result.Successful() || result.Err == nil || !strings.Contains(result.Err.Error(), "gone") {
		t.Errorf("result %+v, want a failure that says it is gone", result)
	}
	if made := parts.provider.World().Created(); made != 1 {
		t.Errorf("%d instances were made: recovery started one", made)
	}
}

func TestRecoveredTaskWhoseProviderIsDownGoesOn(t *testing.T) {
	parts, h, handle := restarted(t, nil)
	parts.provider.Fail(fake.StepWatch, -1, provider.ErrTransient)
	parts.provider.Fail(fake.StepGet, 20, errors.New("connection refused"))
	if err := h.RecoverTask(handle); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the provider answers again", func() bool {
		instance, _ := h.store.task(handle.Config.ID).snapshot()
		return instance.State == provider.Running
	})
}

// Case 6: after a recovery that fails, Nomad destroys by the id and starts anew.
func TestRecoveryThatFailsLeavesTheOldInstanceToDestroy(t *testing.T) {
	parts, h, handle := restarted(t, nil)
	bad := handle.Copy()
	bad.DriverState = []byte(`{"schema":1`)
	if err := h.RecoverTask(bad); err == nil {
		t.Fatal("a broken state was recovered")
	}
	if err := h.DestroyTask(handle.Config.ID, true); err != nil {
		t.Fatal(err)
	}
	if names := parts.names(); len(names) != 0 {
		t.Errorf("old instance %q is still there when the new one is made", names)
	}
	h.start(h.task("2", nil))
}

func TestRecoverRefusesWhatItCannotUnderstand(t *testing.T) {
	_, h, handle := restarted(t, nil)
	tests := map[string]func(*drivers.TaskHandle){
		"schema 2":            func(handle *drivers.TaskHandle) { handle.Version = 2 },
		"instance name":       func(handle *drivers.TaskHandle) { replaceState(handle, `"name":"eg-`, `"name":"../`) },
		`provider "gone"`:     func(handle *drivers.TaskHandle) { replaceState(handle, `"provider":"fake"`, `"provider":"gone"`) },
		"the handle is empty": func(handle *drivers.TaskHandle) { handle.Config = nil },
		"task id":             func(handle *drivers.TaskHandle) { handle.Config.ID = "x" },
	}
	for want, spoil := range tests {
		spoiled := forgotten(handle)
		spoil(spoiled)
		if err := h.RecoverTask(spoiled); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q in it", err, want)
		}
	}
}

func replaceState(handle *drivers.TaskHandle, old, with string) {
	handle.DriverState = []byte(strings.Replace(string(handle.DriverState), old, with, 1))
}

func FuzzDecodeState(f *testing.F) {
	f.Add(1, []byte(`{"schema":1,"provider":"p","ref":{"name":"eg-x"},"port":3128}`))
	f.Add(1, []byte(`{"schema":1,"ref":{"name":"eg-../x"}}`))
	f.Add(0, []byte("\x81\xa3pid\x01"))
	f.Fuzz(func(t *testing.T, version int, content []byte) {
		state, err := decodeState(&drivers.TaskHandle{Version: version, DriverState: content})
		if err != nil {
			return
		}
		if provider.CheckName(state.Ref.Name) != nil || state.Port < 0 || state.Port > maxPort || state.Schema != stateSchema {
			t.Errorf("accepted %+v", state)
		}
	})
}

func TestStateKeepsAllThatARunningTaskNeeds(t *testing.T) {
	h := newHarness(t)
	handle, _ := h.start(h.task("1", map[string]any{
		"auth":      []map[string]any{{"username": "u", "password": "p@:#$/%"}},
		"service":   []map[string]any{{"name": "eu", "tags": []string{"a"}}},
		"probe":     []map[string]any{{"failures": 9, "interval": "42s"}},
		"user_data": "#cloud-config\nsecret: x\n",
	}))
	state, err := decodeState(handle)
	if err != nil {
		t.Fatal(err)
	}
	want := h.store.all()[0].task
	if state.Task.Auth != want.Auth || state.Task.Service.Name != "eu" || state.Task.Probe.Failures != 9 ||
		state.Task.Probe.Interval != 42*time.Second || state.Task.Probe.URLs[0] != "http://target.test/" {
		t.Errorf("state %+v", state.Task)
	}
	if strings.Contains(string(handle.DriverState), "cloud-config") {
		t.Error("user_data is kept although only the start needs it")
	}
}

// Agent and plugin were killed, and the job was stopped before they were back.
func TestInstanceThatNobodyCameBackForIsCollected(t *testing.T) {
	parts, h, handle := restarted(t, nil)
	parts.nomad.set(map[string]bool{handle.Config.AllocID: true})
	if _, err := h.Fingerprint(t.Context()); err != nil {
		t.Fatal(err)
	}
	time.Sleep(30 * time.Millisecond) // several looks
	parts.nomad.set(nil)
	time.Sleep(30 * time.Millisecond)
	if names := parts.names(); len(names) != 1 {
		t.Fatal("an instance was deleted whose allocation lives, or may live")
	}
	parts.nomad.set(map[string]bool{})
	eventually(t, "it is deleted once Nomad says that its allocation is over", func() bool { return len(parts.names()) == 0 })
	if names := parts.consul.names(); len(names) != 0 {
		t.Errorf("still registered: %q", names)
	}
}

// Nomad's word doesn't count against a task that lives here.
func TestTasksAreNoStrays(t *testing.T) {
	h := newHarness(t)
	h.parts.nomad.set(map[string]bool{})
	h.start(h.task("1", nil))
	time.Sleep(30 * time.Millisecond) // several looks
	if names := h.parts.names(); len(names) != 1 {
		t.Error("the instance of a live task was collected")
	}
}

func TestAddressThatChangesIsPublished(t *testing.T) {
	h := newHarness(t)
	h.start(h.task("1", nil))
	name := h.parts.names()[0]
	eventually(t, "the loop has begun", func() bool { _, ok := h.parts.consul.get(name); return ok })
	h.parts.provider.World().SetAddress(name, "192.0.2.77")
	eventually(t, "the new address is registered", func() bool {
		entry, _ := h.parts.consul.get(name)
		return entry.endpoint.Address == "192.0.2.77"
	})
	eventually(t, "the new address is probed", func() bool {
		h.parts.probe.mu.Lock()
		defer h.parts.probe.mu.Unlock()
		return h.parts.probe.probed[len(h.parts.probe.probed)-1] == probe.Proxy{Host: "192.0.2.77", Port: 25000}
	})
	// A reboot: no address for a while. Clients keep what they were told.
	h.parts.provider.World().SetAddress(name, "")
	h.parts.provider.World().Print(name, "booting\n")
	entry, _ := h.parts.consul.get(name)
	if entry.endpoint.Address != "192.0.2.77" {
		t.Errorf("address %q while the guest reboots", entry.endpoint.Address)
	}
}

func TestStaleRegistrationsGoWhenConsulIsBack(t *testing.T) {
	h := newHarness(t)
	h.timing.reconcile = time.Millisecond
	consul := h.parts.consul
	consul.mu.Lock()
	consul.entries["stale"] = registration{}
	consul.down = true
	consul.mu.Unlock()
	cfg := h.task("1", nil)
	h.start(cfg)
	eventually(t, "the look for stale registrations has failed", func() bool {
		consul.mu.Lock()
		defer consul.mu.Unlock()
		return slices.Contains(consul.log, "reconcile")
	})
	consul.mu.Lock()
	consul.down = false
	consul.mu.Unlock()
	eventually(t, "only the task's own registration is left", func() bool {
		return slices.Equal(consul.names(), h.parts.names())
	})
}
