// Package loghold keeps the log pipes of tasks open while the plugin is dead.
//
// Nomad's log collector stops for good when a pipe has no writer any more, and
// the plugin is the only one. One small process per state directory holds the
// write ends too. It imports little, so that it stays small.
package loghold

import (
	"errors"
	"os"
	"strconv"
	"syscall"
	"time"
)

// The hidden verbs of the binary: the first starts the second and returns.
const (
	StartVerb = "__start-log-holder"
	Verb      = "__log-holder"
)

const (
	socketName = "loghold.sock"
	lockName   = "loghold.lock"
	// tries is how often a message is tried while a holder starts, every tryPause.
	tries    = 250
	tryPause = 20 * time.Millisecond
	// startEvery is after how many tries another holder is started: the first may
	// have met one that was just ending.
	startEvery = 25
)

// Client speaks to the holder of one state directory.
type Client struct {
	Dir    string // where the socket is
	Binary string // what has the verbs; empty is this program
}

// Hold makes the holder open a pipe, and starts a holder when none runs. The
// pipe must have a reader.
func (c Client) Hold(path string) error {
	missed := 0
	return c.deliver("+"+path, func() error {
		missed++
		if missed%startEvery != 1 {
			return nil
		}
		return c.start()
	})
}

// Release makes the holder let go of a pipe. No holder is success.
func (c Client) Release(path string) error {
	err := c.deliver("-"+path, func() error { return errNone })
	if errors.Is(err, errNone) {
		return nil
	}
	return err
}

var errNone = errors.New("no holder runs")

// deliver sends a message; missing is called when nobody is there, and its error
// ends the tries. A holder that has many messages to read yet is waited for.
func (c Client) deliver(message string, missing func() error) error {
	var err error
	for range tries {
		err = c.send(message)
		switch {
		case absent(err):
			if err := missing(); err != nil {
				return err
			}
		case !errors.Is(err, syscall.EAGAIN):
			return err
		}
		time.Sleep(tryPause)
	}
	return err
}

func absent(err error) bool {
	return errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.ENOENT)
}

func (c Client) send(message string) error {
	dir, address, err := socketAddress(c.Dir)
	if err != nil {
		return err
	}
	defer syscall.Close(dir)
	fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_DGRAM|syscall.SOCK_CLOEXEC|syscall.SOCK_NONBLOCK, 0)
	if err != nil {
		return os.NewSyscallError("socket", err)
	}
	defer syscall.Close(fd)
	return os.NewSyscallError("sendto", syscall.Sendto(fd, []byte(message), 0, address))
}

// start waits for the first verb only; the holder is nobody's child then.
func (c Client) start() error {
	binary := c.Binary
	if binary == "" {
		binary = "/proc/self/exe"
	}
	process, err := os.StartProcess(binary, []string{"egress", StartVerb, c.Dir},
		&os.ProcAttr{Dir: "/", Sys: &syscall.SysProcAttr{Setsid: true}})
	if err != nil {
		return err
	}
	state, err := process.Wait()
	if err == nil && !state.Success() {
		err = errors.New("start the holder of log pipes: " + state.String())
	}
	return err
}

// socketAddress goes through a descriptor of the directory, since the path of a
// socket may have 107 bytes only (unix(7)) and a state directory more.
func socketAddress(path string) (dir int, address *syscall.SockaddrUnix, err error) {
	dir, err = syscall.Open(path, syscall.O_RDONLY|syscall.O_DIRECTORY|syscall.O_CLOEXEC, 0)
	if err != nil {
		return -1, nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	return dir, &syscall.SockaddrUnix{Name: "/proc/self/fd/" + strconv.Itoa(dir) + "/" + socketName}, nil
}
