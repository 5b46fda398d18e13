package driver

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/egress-proxies/egress/provider"
)

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
