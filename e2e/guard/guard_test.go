package guard_test

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/egress-proxies/egress/e2e/guard"
)

// runVar makes the test binary a run that starts a guard and a process of its
// own, says so, and then waits to be killed.
const runVar = "EGRESS_GUARD_TEST_RUN"

func TestMain(m *testing.M) {
	guard.Main()
	if dir := os.Getenv(runVar); dir != "" {
		run(dir)
	}
	os.Exit(m.Run())
}

func run(dir string) {
	if _, err := guard.Start(dir, ""); err != nil {
		panic(err)
	}
	// A child that left our group, as a proxy that outlives its driver does.
	child := exec.Command("sleep", "1000")
	child.Dir = dir
	child.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := child.Start(); err != nil {
		panic(err)
	}
	os.Stdout.WriteString("started\n")
	select {}
}

func TestNothingOutlivesARunThatIsKilled(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "scratch")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), runVar+"="+dir)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "started\n" {
		t.Fatalf("run said %q: %v", line, err)
	}
	before, err := guard.Processes(dir)
	if err != nil || len(before) != 1 {
		t.Fatalf("processes of %s before: %v, %v; want the one child", dir, before, err)
	}
	guardian := guardOf(t, cmd.Process.Pid)
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	if err := guardian.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}

	if before[0].Alive() {
		t.Errorf("%s outlived the run", before[0])
	}
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("stat %s = %v, want it removed", dir, err)
	}
}

// guardOf finds the guard that the run started: the child of the same program.
func guardOf(t *testing.T, run int) guard.Process {
	t.Helper()
	all, err := guard.All()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range all {
		if p.Parent == run && strings.HasSuffix(p.Exe, ".test") {
			return p
		}
	}
	t.Fatalf("run %d has no guard", run)
	return guard.Process{}
}

func TestSignalSparesAnotherProcessOfTheSameID(t *testing.T) {
	child := exec.Command("sleep", "1000")
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = child.Process.Kill(); _ = child.Wait() })
	all, err := guard.All()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range all {
		if p.PID != child.Process.Pid {
			continue
		}
		reused := p
		reused.Start--
		if err := reused.Signal(syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		if !p.Alive() {
			t.Error("a process was killed for an earlier one of its id")
		}
		return
	}
	t.Fatal("own child not among the processes")
}
