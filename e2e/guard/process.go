package guard

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Process is one process of the machine, as seen when it was looked at.
type Process struct {
	// PID and Parent are process ids.
	PID, Parent int
	// Exe is the path of its executable, Dir its working directory.
	Exe, Dir string
	// Args is its command line.
	Args []string
	// Start is its start time in clock ticks since boot; with PID it tells a
	// process from a later one of the same id.
	Start uint64
	// State is the letter of /proc/<pid>/stat: Z is a zombie.
	State string
}

// String is for messages: "4711 /tmp/x/egress proxy -listen …".
func (p Process) String() string {
	return fmt.Sprintf("%d (parent %d, %s) %s", p.PID, p.Parent, p.State, strings.Join(p.Args, " "))
}

// Processes are the processes that belong to dir: their executable or their
// working directory lies in it. Zombies have neither and are not among them.
func Processes(dir string) ([]Process, error) {
	all, err := All()
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(all, func(p Process) bool {
		return !below(dir, p.Exe) && !below(dir, p.Dir)
	}), nil
}

// All are the processes of the machine except this one, by id. Those that end
// while being looked at are left out.
func All() ([]Process, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	var all []Process
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		if p, ok := read(pid); ok {
			all = append(all, p)
		}
	}
	return all, nil
}

// read looks at one process; ok is false when there is none.
func read(pid int) (p Process, ok bool) {
	proc := filepath.Join("/proc", strconv.Itoa(pid))
	stat, err := os.ReadFile(filepath.Join(proc, "stat"))
	if err != nil {
		return Process{}, false
	}
	// The name is in parentheses and may hold anything (proc(5)): the fields
	// are counted from the last one.
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	if len(fields) < 20 {
		return Process{}, false
	}
	p = Process{PID: pid, State: fields[0]}
	p.Parent, _ = strconv.Atoi(fields[1])
	p.Start, _ = strconv.ParseUint(fields[19], 10, 64)
	p.Exe, _ = os.Readlink(filepath.Join(proc, "exe"))
	p.Exe = strings.TrimSuffix(p.Exe, " (deleted)")
	p.Dir, _ = os.Readlink(filepath.Join(proc, "cwd"))
	p.Dir = strings.TrimSuffix(p.Dir, " (deleted)")
	cmdline, _ := os.ReadFile(filepath.Join(proc, "cmdline"))
	p.Args = strings.Split(strings.TrimRight(string(cmdline), "\x00"), "\x00")
	return p, true
}

// Signal sends a signal to exactly this process; one that is gone, or whose id
// has gone to another, is no error.
func (p Process) Signal(signal syscall.Signal) error {
	// The handle holds on to the process that has the id now (a pidfd), so
	// that nothing can slip in between the look and the signal.
	handle, err := os.FindProcess(p.PID)
	if err != nil {
		return err
	}
	defer func() { _ = handle.Release() }()
	if now, ok := read(p.PID); !ok || now.Start != p.Start {
		return nil
	}
	if err := handle.Signal(signal); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("signal %v to %s: %w", signal, p, err)
	}
	return nil
}

// Alive is true while exactly this process runs; a zombie doesn't.
func (p Process) Alive() bool {
	now, ok := read(p.PID)
	return ok && now.Start == p.Start && now.State != "Z"
}

// Wait returns when the process has ended, whoever its parent is, or when ctx
// ends.
func (p Process) Wait(ctx context.Context) error {
	fd, err := unix.PidfdOpen(p.PID, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("wait for %s: %w", p, err)
	}
	defer func() { _ = unix.Close(fd) }()
	// A pidfd is readable when its process has ended (pidfd_open(2)). The poll
	// is cut into pieces because it doesn't know ctx.
	fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	for p.Alive() {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("wait for %s: %w", p, err)
		}
		if _, err := unix.Poll(fds, 100); err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("wait for %s: %w", p, err)
		}
	}
	return nil
}

// below is true when path is dir or lies in it.
func below(dir, path string) bool {
	return path == dir || strings.HasPrefix(path, dir+"/")
}

// endProcesses kills what belongs to dir until nothing is left: a supervisor
// may start another process between the look and the kill.
func endProcesses(dir string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	for {
		processes, err := Processes(dir)
		if err != nil || len(processes) == 0 {
			return err
		}
		for _, p := range processes {
			if err := p.Signal(syscall.SIGKILL); err != nil {
				return err
			}
		}
		for _, p := range processes {
			if err := p.Wait(ctx); err != nil {
				return fmt.Errorf("guard: kill: %w", err)
			}
		}
	}
}

// unmountAll unmounts what is mounted below dir (Nomad's secrets directories),
// the innermost first.
func unmountAll(dir string) error {
	mounts, err := Mounts(dir)
	if err != nil {
		return err
	}
	for _, mount := range slices.Backward(mounts) {
		if err := syscall.Unmount(mount, syscall.MNT_DETACH); err != nil {
			return fmt.Errorf("guard: unmount %s: %w", mount, err)
		}
	}
	return nil
}

// Mounts are the mount points below dir, in the order they were mounted.
func Mounts(dir string) ([]string, error) {
	file, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	var mounts []string
	for scanner := bufio.NewScanner(file); scanner.Scan(); {
		// The fifth field is the mount point (proc(5)). Scratch directories
		// have no character that would be escaped.
		if fields := strings.Fields(scanner.Text()); len(fields) > 4 && below(dir, fields[4]) {
			mounts = append(mounts, fields[4])
		}
	}
	return mounts, nil
}
