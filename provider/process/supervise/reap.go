package supervise

import (
	"bytes"
	"errors"
	"os"
	"strconv"
	"syscall"
	"time"
)

// waitFor reaps children until pid has ended: orphans of the process become
// children of the supervisor.
func waitFor(pid int) (syscall.WaitStatus, error) {
	for {
		var status syscall.WaitStatus
		ended, err := syscall.Wait4(-1, &status, 0, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
		case err != nil:
			return 0, os.NewSyscallError("wait4", err)
		case ended == pid:
			return status, nil
		}
	}
}

// killRest ends what the process left behind.
func killRest(pid int) {
	_ = syscall.Kill(-pid, syscall.SIGKILL) // its session's first group
	self := os.Getpid()
	deadline := time.Now().Add(2 * time.Second)
	for time.Now().Before(deadline) {
		ended, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil)
		if errors.Is(err, syscall.ECHILD) {
			return
		}
		if ended > 0 {
			continue
		}
		pids, _ := Processes()
		for _, pid := range pids {
			if stat, err := ReadStat(pid); err == nil && stat.Parent == self {
				_ = syscall.Kill(pid, syscall.SIGKILL) // a child of ours: the pid can't be reused
			}
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// oomKilled looks for the process in the kernel's log, where it may be read.
func oomKilled(pid int) bool {
	log, err := os.OpenFile("/dev/kmsg", os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return false
	}
	defer func() { _ = log.Close() }()
	raw, err := log.SyscallConn()
	if err != nil {
		return false
	}
	found := false
	want := []byte("Killed process " + strconv.Itoa(pid) + " (")
	_ = raw.Control(func(fd uintptr) {
		record := make([]byte, 8192) // one read is one record
		for {
			n, err := syscall.Read(int(fd), record)
			if errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.EINTR) {
				continue // records were overwritten meanwhile
			}
			if err != nil || n <= 0 {
				return
			}
			found = found || bytes.Contains(record[:n], want)
		}
	})
	return found
}
