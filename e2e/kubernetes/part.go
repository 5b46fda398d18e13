package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/egress-proxies/egress/e2e/cluster"
)

// part is one program of the control plane.
type part struct {
	name, log string
	cmd       *exec.Cmd
	exited    chan struct{} // closed when cmd has ended
}

// start starts a part of the cluster's program.
func (p *part) start(c *Cluster, name string, args ...string) error {
	return p.startProgram(c.Dir, name, c.config.Program, append([]string{name}, args...)...)
}

// startProgram starts a program in a process group of its own, so that Ctrl-C in
// a terminal doesn't reach it.
func (p *part) startProgram(dir, name, program string, args ...string) error {
	p.name, p.log = name, filepath.Join(dir, name+".log")
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }()
	cmd := exec.Command(program, args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, log, log
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + dir, "TMPDIR=" + dir}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", name, err)
	}
	exited := make(chan struct{})
	go func() { // Ends with the process, which the guard ends at the latest.
		_ = cmd.Wait()
		close(exited)
	}()
	p.cmd, p.exited = cmd, exited
	return nil
}

// ready waits until condition holds, and fails at once when the program exits.
func (p *part) ready(ctx context.Context, what string, condition func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, 90*time.Second)
	defer cancel()
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	exited := p.exited
	go func() { // Ends with this function.
		select {
		case <-exited:
			stop(fmt.Errorf("%s exited", p.name))
		case <-ctx.Done():
		}
	}()
	return cluster.Until(ctx, what, condition)
}

// end kills the program and waits for its end; nothing that runs is no error.
func (p *part) end() error {
	if p.cmd == nil {
		return nil
	}
	if err := p.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("end %s: %w", p.name, err)
	}
	<-p.exited
	p.cmd = nil
	return nil
}
