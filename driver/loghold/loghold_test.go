package loghold_test

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/egress-proxies/egress/driver/loghold"
	_ "github.com/egress-proxies/egress/driver/loghold/early" // this test binary is the holder, too
)

// longDir is longer than the path of a socket may be.
func longDir(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), strings.Repeat("d", 120))
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	return dir
}

// pipe is a FIFO with a reader.
func pipe(t *testing.T, dir, name string) (string, *os.File) {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	reader, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = reader.Close() })
	return path, reader
}

// held is false when the pipe has no writer.
func held(t *testing.T, reader *os.File) bool {
	t.Helper()
	raw, err := reader.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var readErr error
	if err := raw.Read(func(fd uintptr) bool {
		_, readErr = syscall.Read(int(fd), make([]byte, 1))
		return true
	}); err != nil && !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
	return errors.Is(readErr, syscall.EAGAIN)
}

func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); !is(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("never: %s", what)
		}
	}
}

func gone(dir string) func() bool {
	return func() bool {
		lock, err := os.Open(filepath.Join(dir, "loghold.lock"))
		if err != nil {
			return false
		}
		defer lock.Close()
		return syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil
	}
}

// holders are the processes that hold for a directory.
func holders(t *testing.T, dir string) []int {
	t.Helper()
	paths, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	var pids []int
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			continue // it has ended
		}
		if args := strings.Split(string(text), "\x00"); len(args) > 2 && args[1] == loghold.Verb && args[2] == dir {
			pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
			if err != nil {
				t.Fatal(err)
			}
			pids = append(pids, pid)
		}
	}
	return pids
}

// dead is true when all that a process had is closed: its first thread is a
// zombie, since nobody has waited for it yet, and the others are gone.
func dead(pid int) bool {
	proc := "/proc/" + strconv.Itoa(pid)
	threads, err := os.ReadDir(proc + "/task")
	text, err2 := os.ReadFile(proc + "/stat")
	if err != nil || err2 != nil {
		return true
	}
	_, rest, _ := strings.Cut(string(text), ") ")
	return len(threads) == 1 && (strings.HasPrefix(rest, "Z") || strings.HasPrefix(rest, "X"))
}

// TestAKilledHolderIsReplaced when a pipe is to be held: its socket is still
// there, and what it held is not.
func TestAKilledHolderIsReplaced(t *testing.T) {
	dir := longDir(t)
	client := loghold.Client{Dir: dir}
	one, first := pipe(t, dir, "one")
	if err := client.Hold(one); err != nil {
		t.Fatal(err)
	}
	eventually(t, "held", func() bool { return held(t, first) })
	killed := holders(t, dir)
	if len(killed) != 1 {
		t.Fatalf("holders: %v, want one", killed)
	}
	if err := syscall.Kill(killed[0], syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	// Until then it may still be sent something.
	eventually(t, "it is dead", func() bool { return dead(killed[0]) })
	if held(t, first) {
		t.Error("the pipe has a writer")
	}
	if err := client.Release(one); err != nil {
		t.Errorf("release with a dead holder: %v", err)
	}
	if err := client.Hold(one); err != nil {
		t.Fatal(err)
	}
	eventually(t, "held by another", func() bool { return held(t, first) })
	if now := holders(t, dir); len(now) != 1 || now[0] == killed[0] {
		t.Errorf("holders: %v, want one that is not %d", now, killed[0])
	}
	if err := client.Release(one); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it ends", gone(dir))
}

// TestManyAtOnceGetOneHolder, as when a node with many tasks starts, and another
// directory gets its own.
func TestManyAtOnceGetOneHolder(t *testing.T) {
	dir, other := longDir(t), longDir(t)
	var readers []*os.File
	var holding sync.WaitGroup
	for i := range 20 {
		in := dir
		if i == 0 {
			in = other
		}
		path, reader := pipe(t, in, strconv.Itoa(i))
		readers = append(readers, reader)
		holding.Go(func() {
			if err := (loghold.Client{Dir: in}).Hold(path); err != nil {
				t.Error(err)
			}
		})
	}
	holding.Wait()
	for i, reader := range readers {
		eventually(t, "held: "+strconv.Itoa(i), func() bool { return held(t, reader) })
	}
	eventually(t, "the superfluous ones end", func() bool { return len(holders(t, dir)) == 1 && len(holders(t, other)) == 1 })
	for _, reader := range readers {
		_ = reader.Close()
	}
	eventually(t, "both end", func() bool { return gone(dir)() && gone(other)() })
}

// TestHoldOutlastsAHolderThatEnds: one that is on its way out keeps the next one
// from serving.
func TestHoldOutlastsAHolderThatEnds(t *testing.T) {
	dir := longDir(t)
	lock, err := os.OpenFile(filepath.Join(dir, "loghold.lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	letGo := time.AfterFunc(200*time.Millisecond, func() { _ = lock.Close() })
	defer letGo.Stop()
	path, reader := pipe(t, dir, "one")
	if err := (loghold.Client{Dir: dir}).Hold(path); err != nil {
		t.Fatal(err)
	}
	eventually(t, "held", func() bool { return held(t, reader) })
	_ = reader.Close()
	eventually(t, "it ends", gone(dir))
}

func TestHoldsUntilReleasedAndEnds(t *testing.T) {
	dir := longDir(t)
	client := loghold.Client{Dir: dir}
	one, first := pipe(t, dir, "one")
	two, second := pipe(t, dir, "two")
	for _, path := range []string{one, two, one} {
		if err := client.Hold(path); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "both are held", func() bool { return held(t, first) && held(t, second) })
	if err := client.Release(one); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the first is let go", func() bool { return !held(t, first) })
	if !held(t, second) {
		t.Error("the second was let go, too")
	}
	// The reader of the second goes; nobody says so.
	_ = second.Close()
	eventually(t, "the holder ends", gone(dir))
	if err := client.Release(two); err != nil {
		t.Errorf("release without a holder: %v", err)
	}
	// Another one starts.
	if err := client.Hold(one); err != nil {
		t.Fatal(err)
	}
	eventually(t, "held again", func() bool { return held(t, first) })
	if err := client.Release(one); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the second holder ends", gone(dir))
}

// A plugin that comes back has its pipes held once more. The log collector must
// not meet a moment without a writer: it would end for good.
func TestHoldingAgainNeverLooksLikeTheEnd(t *testing.T) {
	dir := longDir(t)
	path, reader := pipe(t, dir, "stdout")
	client := loghold.Client{Dir: dir}
	if err := client.Hold(path); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the pipe is held", func() bool { return held(t, reader) })
	ended := make(chan error, 1)
	go func() {
		_, err := reader.Read(make([]byte, 1))
		ended <- err
	}()
	for range 2000 {
		if err := client.Hold(path); err != nil {
			t.Fatal(err)
		}
		select {
		case err := <-ended:
			t.Fatalf("the reader met an end (%v) while the pipe was held again", err)
		default:
		}
	}
	if err := client.Release(path); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; !errors.Is(err, io.EOF) {
		t.Errorf("after the release: got %v; want EOF", err)
	}
}
