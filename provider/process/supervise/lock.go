package supervise

import (
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
)

// The commands of open file description locks (fcntl(2)), which package syscall
// has no names for. Unlike flock they can be tested without being taken, and
// unlike the old POSIX locks they belong to one open file.
const (
	ofdGetLock = 36
	ofdSetLock = 37
)

// ErrLocked says that somebody else holds the lock.
var ErrLocked = errors.New("locked by another process")

// TryLock takes the lock on the byte at offset of an open file, or returns
// ErrLocked. It is held until the file is closed, also by the holder's death.
func TryLock(file *os.File, offset int64) error {
	lock := syscall.Flock_t{Type: syscall.F_WRLCK, Whence: io.SeekStart, Start: offset, Len: 1}
	err := control(file, ofdSetLock, &lock)
	if errors.Is(err, syscall.EAGAIN) || errors.Is(err, syscall.EACCES) {
		return ErrLocked
	}
	return err
}

// locked says whether somebody holds the first byte of an open file.
func locked(file *os.File) (bool, error) {
	lock := syscall.Flock_t{Type: syscall.F_WRLCK, Whence: io.SeekStart, Start: 0, Len: 1}
	if err := control(file, ofdGetLock, &lock); err != nil {
		return false, err
	}
	return lock.Type != syscall.F_UNLCK, nil
}

func control(file *os.File, command int, lock *syscall.Flock_t) error {
	raw, err := file.SyscallConn()
	if err != nil {
		return err
	}
	var fcntl error
	if err := raw.Control(func(fd uintptr) { fcntl = syscall.FcntlFlock(fd, command, lock) }); err != nil {
		return err
	}
	return os.NewSyscallError("fcntl", fcntl)
}

// hold opens the lock file of dir and takes it. A file that was removed in the
// meantime, since the instance was deleted, is an error as if it never existed.
func hold(dir string) (*os.File, error) {
	path := within(dir, lockFile)
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	err = TryLock(file, 0)
	if err == nil {
		err = sameFile(file, path)
	}
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return file, nil
}

func sameFile(file *os.File, path string) error {
	open, err := file.Stat()
	if err != nil {
		return err
	}
	named, err := os.Stat(path)
	if err != nil {
		return err
	}
	if !os.SameFile(open, named) {
		return fmt.Errorf("%s: replaced while it was locked: %w", path, os.ErrNotExist)
	}
	return nil
}
