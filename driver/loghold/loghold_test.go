package loghold_test

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
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
