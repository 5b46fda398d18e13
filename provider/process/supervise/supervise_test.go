package supervise

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestOutputKeepsOffsetsAcrossFiles(t *testing.T) {
	dir := t.TempDir()
	out := newOutput(dir, 2*4096)
	var all strings.Builder
	reader, err := NewOutputReader(dir, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = reader.Close() }()
	var followed strings.Builder
	for i := range 2000 { // 16 bytes each: about 8 files, of which 2 are kept
		line := fmt.Sprintf("%015d\n", i)
		all.WriteString(line)
		if _, err := out.Write([]byte(line)); err != nil {
			t.Fatal(err)
		}
		if i%100 == 0 {
			part, err := io.ReadAll(reader)
			if err != nil {
				t.Fatal(err)
			}
			followed.Write(part)
		}
	}
	if err := out.Close(); err != nil {
		t.Fatal(err)
	}
	rest, err := io.ReadAll(reader)
	if err != nil || followed.String()+string(rest) != all.String() {
		t.Errorf("a reader that follows got %d bytes, %v, want all %d", followed.Len()+len(rest), err, all.Len())
	}
	starts, err := outputStarts(dir)
	if err != nil || len(starts) != outputFiles {
		t.Fatalf("files at %v, %v, want %d of them", starts, err, outputFiles)
	}
	for _, test := range []struct {
		name         string
		offset, from int64
	}{
		{"rotated away", 5, starts[0]}, {"in the older file", starts[0] + 7, starts[0] + 7},
		{"the first of the newer file", starts[1], starts[1]}, {"at the end", int64(all.Len()), int64(all.Len())},
		{"beyond the end", int64(all.Len()) + 99, int64(all.Len())}, {"negative", -1, int64(all.Len())},
	} {
		r, err := NewOutputReader(dir, test.offset)
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(r)
		if err != nil || string(got) != all.String()[test.from:] {
			t.Errorf("%s: %d bytes, %v, want those from %d on", test.name, len(got), err, test.from)
		}
		if r.Offset() != int64(all.Len()) {
			t.Errorf("%s: offset %d after the end, want %d", test.name, r.Offset(), all.Len())
		}
		_ = r.Close()
	}
}

// A proxy whose output can't be kept must go on.
func TestOutputThatCannotBeWritten(t *testing.T) {
	out := newOutput(filepath.Join(t.TempDir(), "missing"), 1<<20)
	if n, err := out.Write([]byte("lost")); n != 4 || err != nil {
		t.Errorf("write: %d, %v, want it taken as written", n, err)
	}
}

func TestLastLine(t *testing.T) {
	for _, test := range []struct {
		name   string
		writes []string
		want   string
	}{
		{"nothing", nil, ""},
		{"blank lines after it", []string{"bind: in use\n", "\n", "  \n"}, "bind: in use"},
		{"no newline", []string{"first\nsecond"}, "second"},
		{"in pieces", []string{"fi", "rst\nsec", "ond\n"}, "second"},
		{"long", []string{strings.Repeat("x", 5*maxLastLine), "yz\n"}, strings.Repeat("x", maxLastLine)},
		{"not UTF-8", []string{"a\xffb\n"}, "a?b"},
	} {
		l := &lastLine{}
		for _, text := range test.writes {
			_, _ = l.Write([]byte(text))
		}
		if got := l.String(); got != test.want {
			t.Errorf("%s: %q, want %q", test.name, got, test.want)
		}
	}
}

func TestLock(t *testing.T) {
	dir := t.TempDir()
	if err := Prepare(dir, Plan{}); err != nil {
		t.Fatal(err)
	}
	first, err := hold(dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := hold(dir); !errors.Is(err, ErrLocked) {
		t.Errorf("second hold: %v, want ErrLocked", err)
	}
	for range 2 { // looking at it does not take it
		if held, err := isHeld(dir); err != nil || !held {
			t.Errorf("held %t, %v", held, err)
		}
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	if held, err := isHeld(dir); err != nil || held {
		t.Errorf("held %t, %v after its holder closed it", held, err)
	}
}

// A supervisor that was started and comes late finds that its instance is gone.
func TestLateSupervisor(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "instance")
	if err := Prepare(dir, Plan{}); err != nil {
		t.Fatal(err)
	}
	open, err := os.OpenFile(filepath.Join(dir, lockFile), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = open.Close() }()
	if err := Destroy(t.Context(), dir); err != nil {
		t.Fatal(err)
	}
	if err := sameFile(open, filepath.Join(dir, lockFile)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("lock of a deleted instance: %v, want ErrNotExist", err)
	}
	if _, err := hold(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("hold of a deleted instance: %v, want ErrNotExist", err)
	}
}

func TestDestroyWithUnreadableRecords(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "instance")
	if err := Prepare(dir, Plan{}); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, runFile), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Inspect(dir); err == nil || !strings.Contains(err.Error(), runFile) {
		t.Errorf("inspect: %v, want the file named", err)
	}
	for range 2 {
		if err := Destroy(t.Context(), dir); err != nil {
			t.Errorf("destroy: %v", err)
		}
	}
}

func TestDestroyEndsWithItsContext(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "instance")
	if err := Prepare(dir, Plan{}); err != nil {
		t.Fatal(err)
	}
	holder, err := hold(dir) // a supervisor that does not end
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = holder.Close() }()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := Destroy(ctx, dir); err == nil {
		t.Error("destroyed an instance whose lock is held")
	}
	if _, err := os.Stat(filepath.Join(dir, planFile)); err != nil {
		t.Errorf("its records were removed: %v", err)
	}
}

func FuzzParseStat(f *testing.F) {
	own, err := os.ReadFile("/proc/self/stat")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(own)
	f.Add([]byte("1 (a) b) S 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20"))
	f.Add([]byte("1 (x"))
	f.Fuzz(func(t *testing.T, content []byte) {
		stat, err := parseStat(content)
		if err == nil && stat.State == 0 {
			t.Fatalf("%q: no state and no error", content)
		}
	})
}
