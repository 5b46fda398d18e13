package supervise

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"
	"time"
)

// poll is how often a wait for another process looks; ends are otherwise
// noticed through descriptors.
const poll = 5 * time.Millisecond

// grace is how long Destroy waits for each step to take effect. A process that
// SIGKILL doesn't end in this time hangs in the kernel.
const grace = 10 * time.Second

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
