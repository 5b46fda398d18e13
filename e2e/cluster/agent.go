package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"
)

// agent is one of the two agents: a program that is started, killed and started
// again on the same data.
type agent struct {
	name string
	bin  string
	args []string
	dir  string
	env  []string

	cmd *exec.Cmd
	// exited is closed when cmd has ended.
	exited chan struct{}
}

// logFile is where the agent's output of all its starts goes.
func (a *agent) logFile() string { return filepath.Join(a.dir, a.name+".log") }

// PID is the agent's process id, or 0 when it isn't running.
func (a *agent) PID() int {
	if a.cmd == nil {
		return 0
	}
	return a.cmd.Process.Pid
}

// start starts the program in a process group of its own, so that Ctrl-C in a
// terminal doesn't reach it.
func (a *agent) start() error {
	if a.cmd != nil {
		return fmt.Errorf("start %s: runs already", a.name)
	}
	log, err := os.OpenFile(a.logFile(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("start %s: %w", a.name, err)
	}
	defer func() { _ = log.Close() }()
	cmd := exec.Command(a.bin, a.args...)
	cmd.Dir, cmd.Env = a.dir, a.env
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", a.name, err)
	}
	exited := make(chan struct{})
	go func() { // Ends with the process, which the guard ends at the latest.
		_ = cmd.Wait()
		close(exited)
	}()
	a.cmd, a.exited = cmd, exited
	return nil
}

// ready waits until condition holds, and fails at once when the agent exits.
func (a *agent) ready(ctx context.Context, what string, condition func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, 60*time.Second)
	defer cancel()
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	exited := a.exited
	go func() {
		select {
		case <-exited:
			stop(fmt.Errorf("%s exited", a.name))
		case <-ctx.Done():
		}
	}()
	return Until(ctx, what, condition)
}

// Kill ends the agent with kill -9 and waits for its end.
func (a *agent) Kill() error { return a.end(syscall.SIGKILL) }

// Stop ends the agent with SIGTERM and waits for its end.
func (a *agent) Stop() error { return a.end(syscall.SIGTERM) }

func (a *agent) end(signal syscall.Signal) error {
	if a.cmd == nil {
		return nil
	}
	if err := a.cmd.Process.Signal(signal); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("end %s: %w", a.name, err)
	}
	// A Nomad agent waits for the starts in flight.
	const limit = 2 * time.Minute
	select {
	case <-a.exited:
		a.cmd = nil
		return nil
	case <-time.After(limit):
		return fmt.Errorf("end %s: still there %v after %v", a.name, limit, signal)
	}
}
