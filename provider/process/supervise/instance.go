package supervise

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"
	"time"
)

// Phase is how far an instance has come.
type Phase int

// The phases, in the order in which an instance goes through them.
const (
	// Absent: there is no directory.
	Absent Phase = iota
	// Partial: a Prepare or a Start was cut off; nothing runs.
	Partial
	// Starting: the supervisor runs, the process does not yet.
	Starting
	// Running: the process runs.
	Running
	// Ended: the process has ended and Exit says how.
	Ended
	// Lost: the supervisor is gone without having told how the process ended.
	Lost
)

// Snapshot is an instance at one moment.
type Snapshot struct {
	// Phase says which of the other fields are set.
	Phase Phase
	// Plan is set unless Phase is Absent or Partial.
	Plan Plan
	// Planned is true when Plan was read; it may be when Phase is Partial.
	Planned bool
	// Run is set from Running on, and in Starting as soon as it is known.
	Run Run
	// Exit is set when Phase is Ended.
	Exit Exit
	// Stopping is true after MarkStopping.
	Stopping bool
}

// LostReason explains the phase Lost.
func (s Snapshot) LostReason() string {
	if s.Run.Supervisor.Boot != bootID() {
		return "ended by a restart of the node"
	}
	return fmt.Sprintf("its supervisor (pid %d) was killed, and the process with it", s.Run.Supervisor.PID)
}

// Inspect reads the state of the instance in dir.
func Inspect(dir string) (Snapshot, error) {
	var s Snapshot
	// The lock is looked at first: a supervisor writes its last record before
	// it lets go.
	held, err := isHeld(dir)
	if errors.Is(err, fs.ErrNotExist) {
		if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
			return Snapshot{}, nil
		}
		held, err = false, nil
	}
	if err != nil {
		return Snapshot{}, err
	}
	s.Planned, err = readRecord(dir, planFile, &s.Plan)
	if err != nil {
		return Snapshot{}, err
	}
	started, err := readRecord(dir, runFile, &s.Run)
	if err != nil {
		return Snapshot{}, err
	}
	ended, err := readRecord(dir, exitFile, &s.Exit)
	if err != nil {
		return Snapshot{}, err
	}
	if _, err := os.Stat(within(dir, stopFile)); err == nil {
		s.Stopping = true
	}
	switch {
	case ended && s.Planned:
		s.Phase = Ended
	case held && s.Run.Child.PID != 0:
		s.Phase = Running
	case held:
		s.Phase = Starting
	case started && s.Planned:
		s.Phase = Lost
	default:
		s.Phase = Partial
	}
	return s, nil
}

func isHeld(dir string) (bool, error) {
	file, err := os.OpenFile(within(dir, lockFile), os.O_RDWR, 0)
	if err != nil {
		return false, err
	}
	held, err := locked(file)
	return held, errors.Join(err, file.Close())
}

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

// poll is how often a wait for another process looks; ends are otherwise
// noticed through descriptors.
const poll = 5 * time.Millisecond

// grace is how long Destroy waits for each step to take effect. A process that
// SIGKILL doesn't end in this time hangs in the kernel.
const grace = 2 * time.Second

// Destroy ends everything that belongs to dir, by force, and removes it. Gone
// is success.
func Destroy(ctx context.Context, dir string) error {
	snapshot, err := Inspect(dir)
	if err != nil {
		// Records that can't be read must not make an instance undeletable:
		// its processes are found by their marker.
		snapshot = Snapshot{Phase: Partial}
	}
	if snapshot.Phase == Running {
		// The supervisor sees the end, ends the rest, records it and goes.
		_ = snapshot.Run.Child.Signal(syscall.SIGKILL)
		if err := until(ctx, func() (bool, error) { return !snapshot.Run.Supervisor.Alive(), nil }); ctx.Err() != nil {
			return err
		}
		if snapshot, err = Inspect(dir); err != nil {
			snapshot = Snapshot{Phase: Partial}
		}
	}
	if snapshot.Phase != Absent && (snapshot.Phase != Ended || snapshot.Run.Supervisor.Alive()) {
		if err := killMarked(ctx, dir); err != nil {
			return err
		}
	}
	return remove(ctx, dir)
}

// killMarked ends the processes that no supervisor ended: after a supervisor
// that was killed, and a supervisor that has not come far.
func killMarked(ctx context.Context, dir string) error {
	left := -1
	err := until(ctx, func() (bool, error) {
		marked, err := Marked(dir)
		if err != nil {
			return false, err
		}
		alive := 0
		for _, process := range marked {
			if !process.Alive() {
				continue
			}
			alive++
			if err := process.Signal(syscall.SIGKILL); err != nil && !errors.Is(err, os.ErrProcessDone) {
				return false, fmt.Errorf("kill process %d: %w", process.PID, err)
			}
		}
		left = alive
		return alive == 0, nil
	})
	if errors.Is(err, errStill) {
		return fmt.Errorf("%d processes of %s do not end on SIGKILL", left, dir)
	}
	return err
}

var errStill = errors.New("still not")

// until polls a condition for the length of grace.
func until(ctx context.Context, condition func() (bool, error)) error {
	ctx, cancel := context.WithTimeoutCause(ctx, grace, errStill)
	defer cancel()
	ticker := time.NewTicker(poll)
	defer ticker.Stop()
	for {
		if done, err := condition(); done || err != nil {
			return err
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// remove takes the directory away. The lock goes first: a supervisor that was
// started and comes late finds none and ends.
func remove(ctx context.Context, dir string) error {
	var lock *os.File
	err := until(ctx, func() (bool, error) {
		var err error
		lock, err = hold(dir)
		if errors.Is(err, ErrLocked) {
			return false, nil // its threads are still on their way out
		}
		return true, err
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove %s: its supervisor does not let go: %w", dir, err)
	}
	err = os.Remove(within(dir, lockFile))
	if lock != nil {
		err = errors.Join(err, lock.Close())
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	err = syncDir(parent(dir))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
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
