package supervise

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"syscall"
	"time"
)

// Prepare makes dir and writes the plan into it. It may be repeated.
func Prepare(dir string, plan Plan) error {
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	lock, err := os.OpenFile(within(dir, lockFile), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	if err := lock.Close(); err != nil {
		return err
	}
	if err := writeRecord(dir, planFile, plan); err != nil {
		return err
	}
	return syncDir(parent(dir))
}

// Started is a supervisor that this process is the parent of.
type Started struct {
	status *os.File
	reaped chan struct{}
}

// Start runs a supervisor for the prepared dir, in a session of its own so that
// it outlives the caller. Await tells how the start went.
func Start(dir string) (*Started, error) {
	status, childStatus, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	log, err := os.OpenFile(within(dir, logFile), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return nil, errors.Join(err, status.Close(), childStatus.Close())
	}
	process, err := spawn(dir, log, childStatus)
	err = errors.Join(err, log.Close(), childStatus.Close())
	if err != nil {
		return nil, errors.Join(err, status.Close())
	}
	started := &Started{status: status, reaped: make(chan struct{})}
	go func() {
		// The supervisor's own exit code says nothing that its records don't.
		_, _ = process.Wait()
		close(started.reaped)
	}()
	return started, nil
}

// spawn starts this binary, also after an upgrade replaced its file.
func spawn(dir string, log, status *os.File) (*os.Process, error) {
	null, err := os.Open(os.DevNull)
	if err != nil {
		return nil, err
	}
	// A supervisor only waits: a small heap is worth more than fast collection.
	env := []string{"PATH=" + defaultPath, "GOGC=20", Marker + "=" + dir}
	process, err := os.StartProcess("/proc/self/exe", []string{"egress", Verb, dir}, &os.ProcAttr{
		Dir:   "/",
		Env:   env,
		Files: []*os.File{null, log, log, status}, // status is StatusFD
		Sys:   &syscall.SysProcAttr{Setsid: true},
	})
	return process, errors.Join(err, null.Close())
}

// Reaped is closed when the supervisor has ended.
func (s *Started) Reaped() <-chan struct{} { return s.reaped }

// Await waits for the supervisor's word about the start.
func (s *Started) Await(ctx context.Context) (Status, error) {
	defer func() { _ = s.status.Close() }()
	release := context.AfterFunc(ctx, func() { _ = s.status.SetReadDeadline(time.Unix(1, 0)) })
	defer release()
	line, err := bufio.NewReader(s.status).ReadBytes('\n')
	if ctx.Err() != nil {
		return Status{}, ctx.Err()
	}
	if errors.Is(err, io.EOF) {
		return Status{}, errors.New("the supervisor ended without a word")
	}
	if err != nil {
		return Status{}, err
	}
	var status Status
	return status, json.Unmarshal(line, &status)
}

// MarkStopping records that the end was asked for.
func MarkStopping(dir string) error {
	file, err := os.OpenFile(within(dir, stopFile), os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	return file.Close()
}

// Log is the end of what the supervisor itself had to say; empty is normal.
func Log(dir string) string {
	content, err := os.ReadFile(within(dir, logFile))
	if err != nil {
		return ""
	}
	line := &lastLine{}
	_, _ = line.Write(content)
	return line.String()
}
