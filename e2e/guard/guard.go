// Package guard ends whatever a test run started, even when the run itself is
// killed.
//
// A guard is a second process that holds a pipe to the run. When the pipe
// closes, for whatever reason (the run is done, a panic, Ctrl-C, kill -9), it
// ends every process that belongs to the run's scratch directory, unmounts
// what is mounted there and removes it. A deferred clean-up in the run could
// not promise that.
package guard

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
)

// The environment of the guard process: the directory that it watches, and the
// control group to remove, relative to each hierarchy's root.
const (
	dirVar    = "EGRESS_GUARD_DIR"
	cgroupVar = "EGRESS_GUARD_CGROUP"
)

// KeepVar names the environment variable that, when set, keeps scratch
// directories for a look afterwards. Processes and mounts are ended all the
// same.
const KeepVar = "EGRESS_E2E_KEEP"

// Guard is a running guard process.
type Guard struct {
	cmd    *exec.Cmd
	pipe   io.Closer
	output *strings.Builder
}

// Main turns the process into a guard when it was started as one, and then
// never returns. Every program that calls Start calls it first of all.
func Main() {
	dir := os.Getenv(dirVar)
	if dir == "" {
		return
	}
	// The run's end is told by the pipe, never by a signal to the group.
	_, _ = io.Copy(io.Discard, os.Stdin)
	if err := sweep(dir, os.Getenv(cgroupVar)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// Start starts a guard over the directory dir and the control group cgroup
// (may be empty). It runs this very executable again, in a session of its own
// so that Ctrl-C in a terminal doesn't reach it.
func Start(dir, cgroup string) (*Guard, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("start guard: %w", err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), dirVar+"="+dir, cgroupVar+"="+cgroup)
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	output := &strings.Builder{}
	cmd.Stdout, cmd.Stderr = output, output
	pipe, err := cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("start guard: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start guard: %w", err)
	}
	return &Guard{cmd: cmd, pipe: pipe, output: output}, nil
}

// Close makes the guard do its work now and waits for it.
func (g *Guard) Close() error {
	if err := g.pipe.Close(); err != nil {
		return fmt.Errorf("close guard: %w", err)
	}
	if err := g.cmd.Wait(); err != nil {
		return fmt.Errorf("guard: %w: %s", err, strings.TrimSpace(g.output.String()))
	}
	return nil
}

// sweep ends and removes all that belongs to dir and cgroup.
func sweep(dir, cgroup string) error {
	return errors.Join(endProcesses(dir), unmountAll(dir), removeCgroup(cgroup), removeDir(dir))
}

// removeDir removes dir, which must be an absolute path below the top level:
// a guard started by mistake must not be able to empty a machine.
func removeDir(dir string) error {
	if os.Getenv(KeepVar) != "" {
		return nil
	}
	if !filepath.IsAbs(dir) || strings.Count(filepath.Clean(dir), "/") < 2 {
		return fmt.Errorf("guard: %q is not a directory that a run may own", dir)
	}
	return os.RemoveAll(dir)
}

// removeCgroup removes the group and its children from every hierarchy.
func removeCgroup(name string) error {
	if name == "" {
		return nil
	}
	roots, err := filepath.Glob("/sys/fs/cgroup/*/" + name)
	if err != nil {
		return err
	}
	roots = append(roots, filepath.Join("/sys/fs/cgroup", name))
	for _, root := range roots {
		var dirs []string
		_ = filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				dirs = append(dirs, path)
			}
			return nil
		})
		for i := len(dirs) - 1; i >= 0; i-- {
			if err := os.Remove(dirs[i]); err != nil && !errors.Is(err, os.ErrNotExist) {
				return fmt.Errorf("guard: %w", err)
			}
		}
	}
	return nil
}
