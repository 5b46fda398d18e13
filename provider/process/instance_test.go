package process

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/egress-proxies/egress/provider"
	"github.com/egress-proxies/egress/provider/process/supervise"
)

// script is a spec that runs a shell script.
func script(t *testing.T, lines string) provider.Spec {
	t.Helper()
	spec := instanceSpec(t)
	spec.Command, spec.Args = "/bin/sh", []string{"-c", lines}
	return spec
}

func snapshotOf(t *testing.T, p *Provider, name string) supervise.Snapshot {
	t.Helper()
	snapshot, err := supervise.Inspect(filepath.Join(p.dir, name))
	if err != nil {
		t.Fatal(err)
	}
	return snapshot
}

// ends waits until the instance is Stopped.
func ends(t *testing.T, p *Provider, name string) provider.Instance {
	t.Helper()
	var last provider.Instance
	eventually(t, "the instance ends", func() bool {
		var err error
		if last, err = p.Get(t.Context(), provider.Ref{Name: name}); err != nil {
			t.Fatal(err)
		}
		return last.State == provider.Stopped
	})
	return last
}

func TestHowItEnded(t *testing.T) {
	for _, test := range []struct {
		name, script, reason string
		exit                 provider.Exit
	}{
		{"signal", "echo too late >&2; kill -9 $$", "ended by signal 9: too late", provider.Exit{Code: 137, Signal: 9}},
		{"code", "echo to stdout; echo 'config: line 3' >&2; echo; exit 3", "exit code 3: config: line 3", provider.Exit{Code: 3}},
		{"clean", "exit 0", "ended by itself", provider.Exit{}},
	} {
		t.Run(test.name, func(t *testing.T) {
			p := newProvider(t, t.TempDir(), "test", nil)
			spec := script(t, test.script)
			launch(t, p, spec)
			got := ends(t, p, spec.Name)
			if got.Reason != test.reason || got.Exit == nil || *got.Exit != test.exit {
				t.Errorf("reason %q, exit %+v, want %q, %+v", got.Reason, got.Exit, test.reason, test.exit)
			}
		})
	}
}

func TestPortInUseIsTold(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = taken.Close() }()
	p := newProvider(t, t.TempDir(), "test", nil)
	spec := instanceSpec(t)
	_, port, _ := net.SplitHostPort(taken.Addr().String())
	spec.Port, _ = strconv.Atoi(port)
	launch(t, p, spec)
	if got := ends(t, p, spec.Name); !strings.Contains(got.Reason, "address already in use") || got.Exit.Code != 1 {
		t.Errorf("reason %q, exit %+v, want the port named", got.Reason, got.Exit)
	}
}

func TestCommandThatCannotRun(t *testing.T) {
	p := newProvider(t, t.TempDir(), "test", nil)
	plain := filepath.Join(t.TempDir(), "plain")
	if err := os.WriteFile(plain, []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, command := range []string{"no-such-command", "/no/such/command", plain, "/etc"} {
		spec := instanceSpec(t)
		spec.Command = command
		_, err := p.Create(t.Context(), spec)
		if !errors.Is(err, provider.ErrPermanent) || !strings.Contains(err.Error(), command) {
			t.Errorf("%s: %v, want a permanent error that names it", command, err)
		}
		if n := things(t, filepath.Join(p.dir, spec.Name)); n != 0 {
			t.Errorf("%s: %d things are left", command, n)
		}
	}
}

func TestSupervisorKilled(t *testing.T) {
	p := newProvider(t, t.TempDir(), "test", nil)
	// A grandchild in a session of its own loses every tie but its marker.
	spec := script(t, "setsid sleep 1000 & exec sleep 1000")
	launch(t, p, spec)
	dir := filepath.Join(p.dir, spec.Name)
	eventually(t, "three processes run", func() bool { marked, _ := supervise.Marked(dir); return len(marked) == 3 })
	run := snapshotOf(t, p, spec.Name).Run
	if err := run.Supervisor.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	got := ends(t, p, spec.Name)
	if !strings.Contains(got.Reason, fmt.Sprintf("its supervisor (pid %d) was killed", run.Supervisor.PID)) {
		t.Errorf("reason %q", got.Reason)
	}
	eventually(t, "the process ends with its supervisor", func() bool { return !run.Child.Alive() })
	if err := p.Delete(t.Context(), got.Ref); err != nil {
		t.Fatal(err)
	}
	if n := things(t, dir); n != 0 {
		t.Errorf("%d things are left", n)
	}
}

func TestOrphansEndWithTheProcess(t *testing.T) {
	p := newProvider(t, t.TempDir(), "test", nil)
	spec := script(t, "(setsid sleep 1000 &) ; sleep 0.1; exit 0")
	launch(t, p, spec)
	ends(t, p, spec.Name)
	// The supervisor itself may still be on its way out.
	eventually(t, "nothing of it is there after the end", func() bool { return alive(t, filepath.Join(p.dir, spec.Name)) == 0 })
}

func TestReusedPIDIsLeftAlone(t *testing.T) {
	innocent, err := os.StartProcess("/bin/sleep", []string{"sleep", "1000"}, &os.ProcAttr{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = innocent.Kill()
		_, _ = innocent.Wait()
	}()
	identity, err := supervise.Identify(innocent.Pid)
	if err != nil {
		t.Fatal(err)
	}
	for _, stale := range []supervise.Process{
		{PID: identity.PID, Start: identity.Start - 1, Boot: identity.Boot},
		{PID: identity.PID, Start: identity.Start, Boot: "another boot"},
	} {
		if err := stale.Signal(syscall.SIGKILL); !errors.Is(err, os.ErrProcessDone) {
			t.Errorf("signal to %+v: %v, want it taken for gone", stale, err)
		}
	}
	if !identity.Alive() {
		t.Error("a process that got a reused pid was killed")
	}
}

func TestRunsAsNobodyWithoutPowers(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can change to another account")
	}
	p := newProvider(t, t.TempDir(), "test", nil)
	spec := instanceSpec(t)
	launch(t, p, spec)
	status := readFile(t, fmt.Sprintf("/proc/%d/status", snapshotOf(t, p, spec.Name).Run.Child.PID))
	for _, want := range []string{"Uid:\t65534\t65534", "CapEff:\t0000000000000400"} {
		if !strings.Contains(status, want) {
			t.Errorf("no %q in %s", want, status)
		}
	}
}

func TestStopSignalAndWatch(t *testing.T) {
	p := newProvider(t, t.TempDir(), "test", nil)
	spec := script(t, `trap 'echo hup' HUP; trap 'exit 7' TERM; echo ready; while :; do sleep 0.02; done`)
	instance := launch(t, p, spec)
	output, err := p.Console(t.Context(), instance.Ref, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = output.Close() }()
	states, err := p.Watch(t.Context(), instance.Ref)
	if err != nil {
		t.Fatal(err)
	}
	if first := <-states; first.State != provider.Running {
		t.Fatalf("first state %s", first.State)
	}
	want(t, output, "ready\n")
	if err := p.Signal(t.Context(), instance.Ref, "SIGHUP"); err != nil {
		t.Fatal(err)
	}
	want(t, output, "hup\n")
	if err := p.Signal(t.Context(), instance.Ref, "SIGNONSENSE"); !errors.Is(err, provider.ErrPermanent) {
		t.Errorf("an unknown signal: %v, want ErrPermanent", err)
	}
	if err := p.Stop(t.Context(), instance.Ref, ""); err != nil {
		t.Fatal(err)
	}
	var seen []string
	for state := range states {
		seen = append(seen, fmt.Sprintf("%s %t", state.State, state.Exit != nil && state.Exit.Code == 7))
	}
	if len(seen) == 0 || seen[len(seen)-1] != "stopped true" {
		t.Errorf("states %q, want the last one stopped with code 7", seen)
	}
	if rest, err := io.ReadAll(output); err != nil || len(rest) != 0 {
		t.Errorf("console after the end: %q, %v, want its end", rest, err)
	}
	if err := p.Stop(t.Context(), instance.Ref, ""); err != nil {
		t.Errorf("stop of a stopped one: %v, want success", err)
	}
}

func want(t *testing.T, from io.Reader, text string) {
	t.Helper()
	got := make([]byte, len(text))
	if _, err := io.ReadFull(from, got); err != nil || string(got) != text {
		t.Fatalf("read %q, %v, want %q", got, err, text)
	}
}

func TestWatchOfADeletedInstance(t *testing.T) {
	p := newProvider(t, t.TempDir(), "test", nil)
	spec := instanceSpec(t)
	instance := launch(t, p, spec)
	states, err := p.Watch(t.Context(), instance.Ref)
	if err != nil {
		t.Fatal(err)
	}
	<-states
	if err := p.Delete(t.Context(), instance.Ref); err != nil {
		t.Fatal(err)
	}
	var last provider.Instance
	for last = range states {
	}
	if last.State != provider.Stopped {
		t.Errorf("last state %s, want stopped", last.State)
	}
}

func TestWatchAndConsoleEndWithTheContext(t *testing.T) {
	p := newProvider(t, t.TempDir(), "test", map[string]any{})
	spec := instanceSpec(t)
	instance := launch(t, p, spec)
	ctx, cancel := context.WithCancel(t.Context())
	states, err := p.Watch(ctx, instance.Ref)
	if err != nil {
		t.Fatal(err)
	}
	output, err := p.Console(ctx, instance.Ref, -1)
	if err != nil {
		t.Fatal(err)
	}
	<-states
	time.AfterFunc(20*time.Millisecond, cancel)
	if _, err := output.Read(make([]byte, 1)); !errors.Is(err, context.Canceled) {
		t.Errorf("console: %v, want the context's error", err)
	}
	if _, open := <-states; open {
		t.Error("the watch sent a state after its context had ended")
	}
}

func TestConsoleAcrossRotation(t *testing.T) {
	p := newProvider(t, t.TempDir(), "test", map[string]any{"log_max_mib": 1})
	// 3 MiB of numbered lines of 16 bytes, into a log of 1 MiB.
	spec := script(t, `i=0; seq -f '%015.0f' 1 196608`)
	instance := launch(t, p, spec)
	ends(t, p, spec.Name)
	output, err := p.Console(t.Context(), instance.Ref, 0)
	if err != nil {
		t.Fatal(err)
	}
	kept, err := io.ReadAll(output)
	if err != nil {
		t.Fatal(err)
	}
	if len(kept) > 1<<20 || len(kept) < 1<<19 || !strings.HasSuffix(string(kept), fmt.Sprintf("%015d\n", 196608)) {
		t.Fatalf("%d bytes kept, ending in %q", len(kept), kept[max(0, len(kept)-16):])
	}
	// The offset of a line since the start of the process still finds it.
	const line = 196000
	output, err = p.Console(t.Context(), instance.Ref, 16*(line-1))
	if err != nil {
		t.Fatal(err)
	}
	want(t, output, fmt.Sprintf("%015d\n", line))
}

func TestStats(t *testing.T) {
	p := newProvider(t, t.TempDir(), "test", nil)
	spec := script(t, `sh -c 'while :; do :; done' & wait`)
	instance := launch(t, p, spec)
	eventually(t, "the child's work is counted", func() bool {
		stats, err := p.Stats(t.Context(), instance.Ref)
		if err != nil {
			t.Fatal(err)
		}
		return stats.CPUTime >= 50*time.Millisecond && stats.MemoryBytes > 1<<20
	})
}

func TestCommandGetsWhatTheTaskAsksFor(t *testing.T) {
	p := newProvider(t, t.TempDir(), "test", nil)
	spec := script(t, `echo "$EGRESS_LISTEN $EGRESS_USERNAME $EGRESS_PASSWORD $OWN $(pwd)"`)
	spec.Auth = provider.Credentials{Username: "u", Password: "p"}
	spec.Env, spec.Dir = []string{"OWN=1"}, "/usr"
	instance := launch(t, p, spec)
	output, err := p.Console(t.Context(), instance.Ref, 0)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(output); err != nil || string(got) != "127.0.0.1 u p 1 /usr\n" {
		t.Errorf("%q, %v", got, err)
	}
}

func TestNodeRestartIsTold(t *testing.T) {
	p := newProvider(t, t.TempDir(), "test", nil)
	spec := instanceSpec(t)
	launch(t, p, spec)
	dir := filepath.Join(p.dir, spec.Name)
	run := snapshotOf(t, p, spec.Name).Run
	boot := readFile(t, filepath.Join(dir, "run.json"))
	if err := run.Supervisor.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	ends(t, p, spec.Name)
	if err := os.WriteFile(filepath.Join(dir, "run.json"), []byte(strings.ReplaceAll(boot, run.Supervisor.Boot, "before")), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := ends(t, p, spec.Name); got.Reason != "ended by a restart of the node" {
		t.Errorf("reason %q", got.Reason)
	}
}

func TestCheck(t *testing.T) {
	ready := newProvider(t, filepath.Join(t.TempDir(), "made", "on demand"), "test", nil).Check(t.Context())
	if len(ready) != 1 || !ready[0].Ready || ready[0].Reason != provider.Reachable || ready[0].Target != "local" {
		t.Errorf("%+v, want local ready", ready)
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	broken := newProvider(t, file, "test", nil).Check(t.Context())
	if broken[0].Ready || broken[0].Reason != provider.Forbidden || !strings.Contains(broken[0].Message, file) {
		t.Errorf("%+v, want the directory named", broken)
	}
}
