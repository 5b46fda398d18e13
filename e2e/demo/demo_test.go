package main

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/egress-proxies/egress/e2e/cluster"
	"github.com/egress-proxies/egress/e2e/guard"
)

// demoVar makes the test binary the demo.
const demoVar = "EGRESS_DEMO_TEST"

func TestMain(m *testing.M) {
	guard.Main()
	if os.Getenv(demoVar) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

// start runs the demo as `make demo` does, in the project's directory.
func start(t *testing.T, output io.Writer, env []string, args ...string) *exec.Cmd {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, os.Args[0], args...)
	cmd.Dir = "../.."
	cmd.Env = append(append(os.Environ(), demoVar+"=1"), env...)
	cmd.Stdout, cmd.Stderr = output, output
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return cmd
}

var dataLine = regexp.MustCompile(`logs and data +(\S+)`)

// checkGone fails when anything of the demo that wrote output is still there.
func checkGone(t *testing.T, output string) {
	t.Helper()
	match := dataLine.FindStringSubmatch(output)
	if match == nil {
		t.Fatalf("no data directory in:\n%s", output)
	}
	processes, err := guard.Processes(match[1])
	if err != nil || len(processes) > 0 {
		t.Errorf("processes left: %v, %v", processes, err)
	}
	if _, err := os.Stat(match[1]); !os.IsNotExist(err) {
		t.Errorf("stat %s: %v, want it removed", match[1], err)
	}
}

func TestTourShowsEveryStepAndLeavesNothing(t *testing.T) {
	began := time.Now()
	var output bytes.Buffer
	if err := start(t, &output, []string{"DEMO_EXIT=1"}).Wait(); err != nil {
		t.Fatalf("%v:\n%s", err, output.String())
	}
	t.Logf("the tour took %.0f s", time.Since(began).Seconds())
	rest := output.String()
	for _, step := range []string{
		"$ nomad job run",
		"Deployment completed successfully",
		"$ nomad job status proxies",
		"/v1/health/service/egress-proxy?passing",
		"passing  exit_ip=127.0.1.1",
		"$ curl -sSf -X POST",
		`"id": `,
		"$ curl -sSf --proxy",
		`"client": "127.0.1.1`,
		"/report",
		"blocked by",
		"-X DELETE",
		"204",
		"$ kill -9",
		"Nomad has started it again",
		"lease service",
	} {
		_, after, found := strings.Cut(rest, step)
		if !found {
			t.Fatalf("%q is missing, or not in its place, in:\n%s", step, output.String())
		}
		rest = after
	}
	checkGone(t, output.String())
}

func TestCtrlCCleansUp(t *testing.T) {
	reader, writer := io.Pipe()
	cmd := start(t, writer, nil, "-tour=false")
	var output strings.Builder
	waiting := false
	ended := make(chan error, 1)
	go func() {
		err := cmd.Wait()
		_ = writer.Close()
		ended <- err
	}()
	for lines := bufio.NewScanner(reader); lines.Scan(); {
		output.WriteString(lines.Text() + "\n")
		if strings.Contains(lines.Text(), "Ctrl-C ends") {
			waiting = true
			if err := cmd.Process.Signal(os.Interrupt); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := <-ended; err != nil || !waiting {
		t.Fatalf("waited for Ctrl-C: %v, ended with %v:\n%s", waiting, err, output.String())
	}
	if strings.Contains(output.String(), "job status") {
		t.Error("-tour=false gave the tour")
	}
	checkGone(t, output.String())
}

func TestFailedStepFailsTheDemo(t *testing.T) {
	// A Nomad that does not work, and no other on PATH.
	bin := t.TempDir()
	for _, name := range []string{"go", "gcc"} {
		link(t, name, filepath.Join(bin, name))
	}
	var output bytes.Buffer
	err := start(t, &output, []string{"PATH=" + bin, "EGRESS_NOMAD_BIN=/bin/false"}).Wait()
	if err == nil || !strings.Contains(output.String(), "nomad exited") {
		t.Errorf("err = %v, want a failure that says why:\n%s", err, output.String())
	}
}

func TestServersOnPathWin(t *testing.T) {
	bin := t.TempDir()
	for _, name := range []string{"nomad", "consul"} {
		path, err := cluster.Server(name, "EGRESS_"+strings.ToUpper(name)+"_BIN")
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(path, filepath.Join(bin, name)); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	b, err := programs(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := b.builds.Close(); err != nil {
		t.Error(err)
	}
	if b.NomadBin != filepath.Join(bin, "nomad") || b.ConsulBin != filepath.Join(bin, "consul") {
		t.Errorf("servers = %s and %s, want those on PATH", b.NomadBin, b.ConsulBin)
	}
}

// link makes the program that PATH has available at another path.
func link(t *testing.T, name, to string) {
	t.Helper()
	path, err := exec.LookPath(name)
	if err == nil {
		err = os.Symlink(path, to)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func TestQuoteIsWhatAShellTakesAsOneWord(t *testing.T) {
	for _, word := range []string{"", "plain", "a b", `it's "x" $HOME \ *`, "new\nline"} {
		output, err := exec.Command("sh", "-c", "printf %s "+quote(word)).Output()
		if err != nil || string(output) != word {
			t.Errorf("a shell reads %s as %q, %v, want %q", quote(word), output, err, word)
		}
	}
}
