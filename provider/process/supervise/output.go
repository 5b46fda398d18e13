package supervise

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// The captured output is a row of files named by the offset of their first byte
// since the start of the process, so that a position stays valid when older
// files are removed. outputFiles of them are kept.
const (
	outputPrefix = "output."
	outputFiles  = 2
)

// output writes the row of files. It never fails and never blocks for long: a
// full disk must not stop a proxy, so what can't be written is left out.
type output struct {
	dir string
	max int64 // bytes of one file

	mu     sync.Mutex // guards what follows
	file   *os.File
	start  int64 // offset of the file's first byte
	size   int64 // bytes in the file
	failed bool  // the last write did not succeed
}

func newOutput(dir string, maxBytes int64) *output {
	return &output{dir: dir, max: max(maxBytes/outputFiles, 4096)}
}

// Write appends p, starting a new file first when it would not fit.
func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.file == nil || o.size+int64(len(p)) > o.max {
		if err := o.rotate(); err != nil {
			o.failed = true
			return len(p), nil
		}
	}
	n, err := o.file.Write(p)
	o.size += int64(n)
	o.failed = err != nil
	return len(p), nil
}

// rotate starts the next file and removes the ones that are too many.
func (o *output) rotate() error {
	if o.file != nil && o.size == 0 {
		return nil
	}
	start := o.start + o.size
	file, err := os.OpenFile(outputName(o.dir, start), os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	if o.file != nil {
		_ = o.file.Close() // every write to it was already answered
	}
	o.file, o.start, o.size = file, start, 0
	starts, err := outputStarts(o.dir)
	if err != nil {
		return err
	}
	for len(starts) > outputFiles {
		_ = os.Remove(outputName(o.dir, starts[0])) // tried again at the next one
		starts = starts[1:]
	}
	return nil
}

func (o *output) Close() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.file == nil {
		return nil
	}
	return o.file.Close()
}

func outputName(dir string, start int64) string {
	return within(dir, fmt.Sprintf("%s%020d", outputPrefix, start))
}

// outputStarts lists the offsets of the files, in order.
func outputStarts(dir string) ([]int64, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var starts []int64
	for _, entry := range entries {
		number, ok := strings.CutPrefix(entry.Name(), outputPrefix)
		if !ok {
			continue
		}
		if start, err := strconv.ParseInt(number, 10, 64); err == nil {
			starts = append(starts, start)
		}
	}
	slices.Sort(starts)
	return starts, nil
}

// lastLine remembers the last line that is not blank of what is written to it.
type lastLine struct {
	mu      sync.Mutex // guards what follows
	line    []byte     // the last full line
	current []byte     // the line being written
}

// maxLastLine fits the message of a task event with room for its context.
const maxLastLine = 300

func (l *lastLine) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, part := range bytes.SplitAfter(p, []byte("\n")) {
		room := maxLastLine - len(l.current)
		l.current = append(l.current, part[:min(len(part), max(room, 0))]...)
		if !bytes.HasSuffix(part, []byte("\n")) {
			continue
		}
		if line := bytes.TrimSpace(l.current); len(line) > 0 {
			l.line = append(l.line[:0], line...)
		}
		l.current = l.current[:0]
	}
	return len(p), nil
}

func (l *lastLine) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if line := bytes.TrimSpace(l.current); len(line) > 0 {
		return strings.ToValidUTF8(string(line), "?")
	}
	return strings.ToValidUTF8(string(l.line), "?")
}
