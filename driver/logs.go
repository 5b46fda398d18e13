package driver

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/egress-proxies/egress/provider"
)

// logChunk is small because every task has one for its life.
const logChunk = 4 << 10

// offsets keep, on disk, how much of each instance's output was handed to
// Nomad, so that a plugin that was restarted goes on there.
type offsets struct {
	dir string
}

func (o offsets) path(name string) string { return filepath.Join(o.dir, name+".offset") }

// read is 0 when nothing is known.
func (o offsets) read(name string) int64 {
	content, err := os.ReadFile(o.path(name))
	if err != nil {
		return 0
	}
	offset, err := strconv.ParseInt(strings.TrimSpace(string(content)), 10, 64)
	if err != nil || offset < 0 {
		return 0
	}
	return offset
}

func (o offsets) write(name string, offset int64) error {
	return replaceFile(o.path(name), strconv.AppendInt(nil, offset, 10))
}

// remove forgets an instance. What can't be removed is a few bytes.
func (o offsets) remove(name string) { _ = os.Remove(o.path(name)) }

// pumpLogs copies the instance's output into the FIFO that Nomad's log
// collector reads, until the instance has ended and all of it was copied.
func (h *handle) pumpLogs() {
	defer close(h.logsDone)
	defer h.releaseCollector()
	console, ok := h.place.Provider.(provider.Console)
	if !ok || h.cfg.StdoutPath == "" {
		select {
		case <-h.done:
		case <-h.logs.Done():
		}
		return
	}
	p := &pump{
		name:    h.ref().Name,
		offsets: h.offsets,
		sink:    &fifo{path: h.cfg.StdoutPath, retry: h.timing.logRetry, opened: h.holdCollector},
		every:   h.timing.saveOffset,
	}
	p.offset = p.offsets.read(p.name)
	h.holdCollector() // after a recovery, before there is anything to write
	defer p.sink.close()
	for h.logs.Err() == nil {
		err := p.copy(h.logs, func(ctx context.Context) (io.ReadCloser, error) {
			return console.Console(ctx, h.ref(), p.offset)
		})
		if err == nil && h.ended() {
			return
		}
		if err != nil && h.logs.Err() == nil && !errors.Is(err, provider.ErrNotFound) {
			h.logger.Debug("reading the instance's output broke off, going on", "instance", p.name, "error", err)
		}
		wait(h.logs, h.timing.logRetry)
	}
}

// holdCollector keeps the log collector from ending with the plugin. Without it,
// nothing but the output after a plugin's death is late.
func (h *handle) holdCollector() {
	if h.holder == nil {
		return
	}
	err := os.MkdirAll(h.holder.Dir, 0o700)
	if err == nil {
		err = h.holder.Hold(h.cfg.StdoutPath)
	}
	if err != nil {
		h.logger.Warn("the log pipe is not held open: logs stand still when the plugin dies", "error", err)
	}
}

// releaseCollector lets Nomad's log collector finish with a task that has ended.
// It sits in the opening of a pipe that nobody has written to, as stderr's never
// is, and would hold up a restart or a stop for four seconds (nomad 1.6,
// client/logmon: twice processOutputCloseTolerance).
func (h *handle) releaseCollector() {
	if !h.ended() {
		return // the plugin ends, the task goes on
	}
	if h.holder != nil && h.cfg.StdoutPath != "" {
		if err := h.holder.Release(h.cfg.StdoutPath); err != nil {
			h.logger.Warn("the log pipe is still held open", "error", err)
		}
	}
	for _, path := range []string{h.cfg.StdoutPath, h.cfg.StderrPath} {
		if path == "" {
			continue
		}
		// ENXIO: it doesn't read any more.
		if file, err := os.OpenFile(path, os.O_WRONLY|syscall.O_NONBLOCK, 0); err == nil {
			_ = file.Close() // nothing is buffered
		}
	}
}

// drainLogs waits until the output of an instance that has ended was copied,
// within a bound: a dead log collector must not hold up the end of a task.
func (h *handle) drainLogs() {
	timer := time.NewTimer(h.timing.drainLogs)
	defer timer.Stop()
	select {
	case <-h.logsDone:
	case <-timer.C:
	case <-h.ctx.Done():
	}
}

// pump copies one instance's output.
type pump struct {
	name    string
	offsets offsets
	sink    *fifo
	every   time.Duration

	offset int64
	saved  time.Time
}

// copy copies until the reader ends (nil) or breaks.
func (p *pump) copy(ctx context.Context, open func(context.Context) (io.ReadCloser, error)) error {
	reader, err := open(ctx)
	if err != nil {
		return err
	}
	defer reader.Close()
	defer p.save()
	buffer := make([]byte, logChunk)
	for {
		n, err := reader.Read(buffer)
		written, writeErr := p.sink.write(ctx, buffer[:n])
		p.offset += int64(written)
		if writeErr != nil {
			return writeErr
		}
		if n > 0 && time.Since(p.saved) >= p.every {
			p.save()
		}
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
	}
}

// save writes the offset down. When it can't, a restarted plugin repeats some
// output, which is no reason to stop it.
func (p *pump) save() {
	if p.offset == 0 {
		return
	}
	_ = p.offsets.write(p.name, p.offset)
	p.saved = time.Now()
}

// fifo writes into a named pipe whose reader may come, go and come back.
type fifo struct {
	path  string
	retry time.Duration
	// opened is called when the pipe was opened; nil is nothing.
	opened func()
	file   *os.File
}

// write writes all of b, waiting for a reader as long as it takes; it ends early
// with ctx only. It never blocks a thread: the pipe is opened non-blocking, so
// that the runtime waits for it.
func (f *fifo) write(ctx context.Context, b []byte) (written int, err error) {
	for len(b) > 0 {
		if err := ctx.Err(); err != nil {
			return written, err
		}
		if f.file == nil {
			// ENXIO: nobody reads. ENOENT: the pipe is yet to be made.
			file, err := os.OpenFile(f.path, os.O_WRONLY|os.O_APPEND|syscall.O_NONBLOCK, 0)
			if err != nil {
				wait(ctx, f.retry)
				continue
			}
			f.file = file
			if f.opened != nil {
				f.opened()
			}
		}
		stop := context.AfterFunc(ctx, f.interrupt(f.file))
		n, err := f.file.Write(b)
		stop()
		written, b = written+n, b[n:]
		if err != nil {
			f.close()
		}
	}
	return written, nil
}

func (f *fifo) interrupt(file *os.File) func() {
	return func() { _ = file.SetWriteDeadline(time.Unix(1, 0)) }
}

func (f *fifo) close() {
	if f.file != nil {
		_ = f.file.Close() // nothing is buffered
		f.file = nil
	}
}

// wait waits for a time, or for the end of ctx.
func wait(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
