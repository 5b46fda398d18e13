package supervise

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"
)

// ControlFD is the descriptor on which a process whose plan has Control finds
// its listening socket.
const ControlFD = 3

// controlBacklog is how many may wait to be heard; one plugin asks at a time.
const controlBacklog = 8

// listenControl makes the listening socket in dir. Only who may enter dir can
// connect, whoever the process runs as.
func listenControl(dir string) (*os.File, error) {
	if err := os.Remove(within(dir, ctrlFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	file := os.NewFile(uintptr(fd), ctrlFile)
	err = AtControl(dir, func(path string) error {
		return os.NewSyscallError("bind", syscall.Bind(fd, &syscall.SockaddrUnix{Name: path}))
	})
	if err == nil {
		err = os.Chmod(within(dir, ctrlFile), 0o600)
	}
	if err == nil {
		err = os.NewSyscallError("listen", syscall.Listen(fd, controlBacklog))
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("control socket: %w", err), file.Close())
	}
	return file, nil
}

// AtControl calls use with a path of the control socket of dir that is short
// enough for a socket address (108 bytes, unix(7)), however deep dir is. The
// path is good until use returns.
func AtControl(dir string, use func(path string) error) error {
	opened, err := os.Open(dir)
	if err != nil {
		return err
	}
	raw, err := opened.SyscallConn()
	if err != nil {
		return errors.Join(err, opened.Close())
	}
	var used error
	err = raw.Control(func(fd uintptr) { used = use(fmt.Sprintf("/proc/self/fd/%d/%s", fd, ctrlFile)) })
	return errors.Join(used, err, opened.Close())
}
