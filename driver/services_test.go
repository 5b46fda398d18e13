package driver

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/hashicorp/nomad/plugins/drivers/testutils"

	"github.com/egress-proxies/egress/driver/probe"
	"github.com/egress-proxies/egress/provider"
	"github.com/egress-proxies/egress/provider/fake"
)

func TestExecProbe(t *testing.T) {
	h := newHarness(t)
	cfg := h.task("1", nil)
	h.start(cfg)
	result, err := h.ExecTask(cfg.ID, []string{"probe"}, time.Minute)
	if err != nil || result.ExitResult.ExitCode != 0 || !strings.Contains(string(result.Stdout), "proxy works (1ms), exit address 198.51.100.7") {
		t.Errorf("a proxy that works: %+v %q, %v", result.ExitResult, result.Stdout, err)
	}
	h.parts.probe.say(refuses(probe.StageAuth, "the proxy answered 407"))
	result, err = h.ExecTask(cfg.ID, []string{"probe"}, time.Minute)
	if err != nil || result.ExitResult.ExitCode != 2 || !strings.Contains(string(result.Stdout), "auth: the proxy answered 407") {
		t.Errorf("a proxy that refuses: %+v %q, %v", result.ExitResult, result.Stdout, err)
	}
}

func TestExecRunsInTheInstance(t *testing.T) {
	h := newHarness(t)
	cfg := h.task("1", nil)
	h.start(cfg)
	result, err := h.ExecTask(cfg.ID, []string{"uname", "-a"}, time.Minute)
	if err != nil || string(result.Stdout) != "[uname -a]\n" {
		t.Errorf("%q, %v", result.Stdout, err)
	}
	if result, err := h.ExecTask(cfg.ID, []string{"exit", "7"}, time.Minute); err != nil || result.ExitResult.ExitCode != 7 {
		t.Errorf("%+v, %v, want exit code 7", result, err)
	}
	if _, err := h.ExecTask(cfg.ID, nil, time.Minute); err == nil {
		t.Error("no command was run without an error")
	}
	if _, err := h.ExecTask("alloc/never/seen", []string{"probe"}, time.Minute); !errors.Is(err, drivers.ErrTaskNotFound) {
		t.Errorf("unknown task: %v", err)
	}
}

func TestExecIsBounded(t *testing.T) {
	h := newHarness(t)
	cfg := h.task("1", nil)
	h.start(cfg)
	_, release := h.parts.provider.Hold(fake.StepExec)
	defer release()
	if _, err := h.ExecTask(cfg.ID, []string{"sleep"}, 10*time.Millisecond); err == nil {
		t.Error("no error although the command hangs")
	}
}

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

// The stream's real other end: what an agent does for `nomad alloc exec`.
func TestExecStreaming(t *testing.T) {
	h := newHarness(t)
	nomad := testutils.NewDriverHarness(t, h.Driver)
	cfg := h.task("1", nil)
	allocDir(t, nomad, cfg, false)
	h.start(cfg)
	raw, ok := nomad.DriverPlugin.(drivers.ExecTaskStreamingRawDriver)
	if !ok {
		t.Fatal("the client can't stream")
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	stream := &execStream{ctx: ctx, input: []byte("input that the command never reads")}
	if err := raw.ExecTaskStreamingRaw(ctx, cfg.ID, []string{"exit", "3"}, true, stream); err != nil {
		t.Fatalf("exec: %v", err)
	}
	if stream.exit == nil || stream.exit.ExitCode != 3 {
		t.Errorf("exit %v, want code 3", stream.exit)
	}
	stream = &execStream{ctx: ctx}
	if err := raw.ExecTaskStreamingRaw(ctx, cfg.ID, []string{"probe"}, false, stream); err != nil {
		t.Fatalf("probe: %v", err)
	}
	if !strings.Contains(stream.stdout.String(), "proxy works") {
		t.Errorf("stdout %q", stream.stdout.String())
	}
}

// What a streaming exec returns as an error, the CLI shows as "unexpected EOF".
func TestExecStreamingTellsWhyNothingRan(t *testing.T) {
	parts := newParts(t)
	parts.bare = true
	h := startHarness(t, parts, testConfig)
	cfg := h.task("1", nil)
	h.start(cfg)
	stream := &execStream{ctx: t.Context()}
	if err := h.ExecTaskStreamingRaw(t.Context(), cfg.ID, []string{"sh"}, false, stream); err != nil {
		t.Fatal(err)
	}
	if stream.exit == nil || stream.exit.ExitCode != 126 {
		t.Errorf("exit %v, want code 126", stream.exit)
	}
	if got := stream.stderr.String(); !strings.Contains(got, `command "sh": provider`) || !strings.Contains(got, `want "probe"`) {
		t.Errorf("stderr %q", got)
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

func TestLogsGoOnWhereTheyWere(t *testing.T) {
	parts := newParts(t)
	fifo := filepath.Join(t.TempDir(), "stdout.fifo")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	h := startHarness(t, parts, testConfig)
	cfg := h.task("1", nil)
	cfg.StdoutPath = fifo
	handle, _ := h.start(cfg)
	name := parts.names()[0]

	// No log collector yet: nothing is lost, nothing blocks.
	parts.provider.World().Print(name, "one\n")
	reader := openFIFO(t, fifo)
	readLine(t, reader, "one\n")
	// The collector dies and comes back.
	if err := reader.Close(); err != nil {
		t.Fatal(err)
	}
	reader = openFIFO(t, fifo)
	parts.provider.World().Print(name, "two\n")
	readLine(t, reader, "two\n")
	crash(t, h)
	parts.provider.World().Print(name, "three\n")

	next := startHarness(t, parts, testConfig)
	if err := next.RecoverTask(handle); err != nil {
		t.Fatal(err)
	}
	readLine(t, reader, "three\n")
	parts.provider.World().Print(name, "last words\n")
	parts.provider.World().End(name, provider.Exit{}, "")
	readLine(t, reader, "last words\n")
	next.waited(cfg.ID)
	if err := next.DestroyTask(cfg.ID, true); err != nil {
		t.Fatal(err)
	}
	if rest, err := io.ReadAll(reader); err != nil || len(rest) != 0 {
		t.Errorf("repeated %q, %v", rest, err)
	}
}

// A log collector that hangs must hold up neither the end nor the plugin.
func TestLogsThatNobodyReadsHoldUpNothing(t *testing.T) {
	h := newHarness(t)
	h.timing.drainLogs = 10 * time.Millisecond
	fifo := filepath.Join(t.TempDir(), "stdout.fifo")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	hung := openFIFO(t, fifo)
	defer hung.Close()
	cfg := h.task("1", nil)
	cfg.StdoutPath = fifo
	h.start(cfg)
	h.parts.provider.World().Print(h.parts.names()[0], string(bytes.Repeat([]byte("x"), 1<<20)))
	if err := h.StopTask(cfg.ID, time.Minute, ""); err != nil {
		t.Error(err)
	}
	h.waited(cfg.ID)
	if err := h.DestroyTask(cfg.ID, false); err != nil {
		t.Error(err)
	}
}

// Nomad's log collector blocks in the opening of a pipe until somebody writes
// to it, and a restart waits four seconds for one that blocks.
func TestLogCollectorEndsWithTheTask(t *testing.T) {
	for _, bare := range []bool{false, true} {
		parts := newParts(t)
		parts.bare = bare
		h := startHarness(t, parts, testConfig)
		cfg := h.task("1", nil)
		ended := make(chan error, 2)
		for name, path := range map[string]*string{"stdout": &cfg.StdoutPath, "stderr": &cfg.StderrPath} {
			*path = filepath.Join(t.TempDir(), name)
			if err := syscall.Mkfifo(*path, 0o600); err != nil {
				t.Fatal(err)
			}
			fifo := *path
			go func() {
				file, err := os.Open(fifo)
				if err == nil {
					_, err = io.Copy(io.Discard, file)
				}
				ended <- err
			}()
		}
		openers(t, 2)
		h.start(cfg)
		parts.provider.World().End(parts.names()[0], provider.Exit{}, "")
		h.waited(cfg.ID)
		for range 2 {
			select {
			case err := <-ended:
				if err != nil {
					t.Error(err)
				}
			case <-time.After(patience):
				t.Fatalf("bare %v: a collector still waits", bare)
			}
		}
	}
}

// openers waits until so many threads of this process block in the opening of a
// pipe; where the kernel doesn't say what threads wait for, it believes that.
func openers(t *testing.T, n int) {
	t.Helper()
	eventually(t, "somebody opens the pipes", func() bool {
		paths, err := filepath.Glob("/proc/self/task/*/wchan")
		if err != nil {
			t.Fatal(err)
		}
		blocked, told := 0, false
		for _, path := range paths {
			place, _ := os.ReadFile(path) // it may have ended
			told = told || len(place) > 1
			if strings.Contains(string(place), "wait_for_partner") { // in fs/pipe.c
				blocked++
			}
		}
		return blocked >= n || !told
	})
}

func openFIFO(t *testing.T, path string) *os.File {
	t.Helper()
	file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = file.Close() })
	return file
}

func readLine(t *testing.T, reader io.Reader, want string) {
	t.Helper()
	var got []byte
	buffer := make([]byte, 256)
	eventually(t, "the log has "+want, func() bool {
		// Without a writer a FIFO is at its end until one comes.
		n, _ := reader.Read(buffer)
		got = append(got, buffer[:n]...)
		return len(got) >= len(want)
	})
	if string(got) != want {
		t.Fatalf("log %q, want %q", got, want)
	}
}
