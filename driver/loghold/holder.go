package loghold

import (
	"os"
	"syscall"
)

const (
	// firstWait, in milliseconds, is how long a new holder waits for its first pipe.
	firstWait = 5000
	// maxMessage is a sign and the longest path of Linux.
	maxMessage = 1 + 4096
)

// Main runs one of the hidden verbs and returns the exit status.
func Main(verb, dir string) int {
	if verb == StartVerb {
		_, err := os.StartProcess("/proc/self/exe", []string{"egress", Verb, dir},
			&os.ProcAttr{Dir: "/", Sys: &syscall.SysProcAttr{Setsid: true}})
		return status(err)
	}
	return status(hold(dir))
}

func status(err error) int {
	if err != nil {
		return 1
	}
	return 0
}

type holder struct {
	epoll, socket int
	byPath        map[string]int
	byFD          map[int]string
}

// hold serves until nothing is held any more. A second holder of a directory
// returns at once.
func hold(dir string) error {
	lock, err := syscall.Open(dir+"/"+lockName, syscall.O_CREAT|syscall.O_RDWR|syscall.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	if err := syscall.Flock(lock, syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return nil // there is one
	}
	h := &holder{byPath: make(map[string]int), byFD: make(map[int]string)}
	if h.epoll, err = syscall.EpollCreate1(syscall.EPOLL_CLOEXEC); err != nil {
		return err
	}
	for {
		if err := h.serve(dir); err != nil {
			return err
		}
		if len(h.byPath) == 0 {
			return nil
		}
	}
}

// serve returns when nothing is held. The name goes first and what was sent
// before is read then, so that no message is lost: hold goes on with it.
func (h *holder) serve(dir string) error {
	fd, address, err := socketAddress(dir)
	if err != nil {
		return err
	}
	defer syscall.Close(fd)
	_ = syscall.Unlink(address.Name) // a killed holder's
	h.socket, err = syscall.Socket(syscall.AF_UNIX, syscall.SOCK_DGRAM|syscall.SOCK_CLOEXEC|syscall.SOCK_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer syscall.Close(h.socket)
	if err := syscall.Bind(h.socket, address); err != nil {
		return err
	}
	if err := syscall.Chmod(address.Name, 0o600); err != nil {
		return err
	}
	if err := h.watch(h.socket, syscall.EPOLLIN); err != nil {
		return err
	}
	events := make([]syscall.EpollEvent, 16)
	for first := true; first || len(h.byPath) > 0; {
		timeout := -1
		if len(h.byPath) == 0 {
			timeout = firstWait
		}
		n, err := syscall.EpollWait(h.epoll, events, timeout)
		if err != nil && err != syscall.EINTR {
			return err
		}
		if err == nil {
			first = false
		}
		for _, event := range events[:max(n, 0)] {
			if int(event.Fd) == h.socket {
				h.receive()
			} else {
				h.release(h.byFD[int(event.Fd)])() // no reader any more
			}
		}
	}
	_ = syscall.Unlink(address.Name)
	h.receive()
	return nil
}

// watch reports errors also when no events are asked for (epoll_ctl(2)).
func (h *holder) watch(fd int, events uint32) error {
	return syscall.EpollCtl(h.epoll, syscall.EPOLL_CTL_ADD, fd, &syscall.EpollEvent{Events: events, Fd: int32(fd)})
}

func (h *holder) receive() {
	buffer := make([]byte, maxMessage)
	for {
		n, _, err := syscall.Recvfrom(h.socket, buffer, 0)
		if err == syscall.EINTR {
			continue
		}
		if err != nil {
			return
		}
		if n < 2 {
			continue
		}
		switch path := string(buffer[1:n]); buffer[0] {
		case '+':
			h.open(path)
		case '-':
			h.release(path)()
		}
	}
}

// open takes the place of an earlier pipe of the same path. A pipe without a
// reader is not held. The earlier one is let go last: a moment without a writer
// would end the log collector for good.
func (h *holder) open(path string) {
	defer h.release(path)()
	fd, err := syscall.Open(path, syscall.O_WRONLY|syscall.O_NONBLOCK|syscall.O_CLOEXEC, 0)
	if err != nil {
		return
	}
	var about syscall.Stat_t
	if syscall.Fstat(fd, &about) != nil || about.Mode&syscall.S_IFMT != syscall.S_IFIFO || h.watch(fd, 0) != nil {
		_ = syscall.Close(fd)
		return
	}
	h.byPath[path], h.byFD[fd] = fd, path
}

// release forgets a pipe; what it returns closes it.
func (h *holder) release(path string) func() {
	fd, held := h.byPath[path]
	if !held {
		return func() {}
	}
	delete(h.byPath, path)
	delete(h.byFD, fd)
	return func() { _ = syscall.Close(fd) }
}
