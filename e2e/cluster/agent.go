package cluster

import (
	"bytes"
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
	// began is where cmd's output begins in the log.
	began int64
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
	info, err := log.Stat()
	if err != nil {
		return fmt.Errorf("start %s: %w", a.name, err)
	}
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
	a.cmd, a.exited, a.began = cmd, exited, info.Size()
	return nil
}

// knownCrash is in the stack of a defect of Nomad 1.6.1: a task that has to be
// started again while the agent starts reaches an HTTP server that isn't made
// yet. It happens now and then after everything was killed, and an agent in a
// service manager is started again.
const knownCrash = "net/http.(*Server).Serve(0x0"

// crashedKnown is true when the agent has ended by knownCrash.
func (a *agent) crashedKnown() bool {
	select {
	case <-a.exited:
	default:
		return false
	}
	text, err := os.ReadFile(a.logFile())
	return err == nil && int64(len(text)) >= a.began && bytes.Contains(text[a.began:], []byte(knownCrash))
}

// ready waits until condition holds, and fails at once when the agent exits;
// but after a knownCrash it is started again, once.
func (a *agent) ready(ctx context.Context, what string, condition func(context.Context) error) error {
	err := a.await(ctx, what, condition)
	if err == nil || ctx.Err() != nil || !a.crashedKnown() {
		return err
	}
	fmt.Fprintf(os.Stderr, "e2e: %s crashed at its start as Nomad 1.6 does now and then; starting it again\n", a.name)
	a.cmd = nil
	if err := a.start(); err != nil {
		return err
	}
	return a.await(ctx, what, condition)
}

func (a *agent) await(ctx context.Context, what string, condition func(context.Context) error) error {
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
