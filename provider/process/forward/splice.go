package forward

import (
	"errors"
	"io"
	"net"
	"os"
	"runtime"
	"syscall"
)

// relay moves bytes from src to dst until the end of src, without copying them
// through this process: the kernel moves pages from the one socket into a pipe
// and from there into the other. It calls moved after each portion.
//
// io.Copy between two TCP connections splices as well, but holds its pipe, two
// descriptors and up to a mebibyte, also while nothing moves. A proxy has many
// more idle tunnels than busy ones, so here a pipe is taken only when there is
// something to move.
func relay(dst, src *net.TCPConn, pipes *pipePool, moved func(n int)) error {
	from, err := src.SyscallConn()
	if err != nil {
		return err
	}
	to, err := dst.SyscallConn()
	if err != nil {
		return err
	}
	for {
		if err := waitReadable(from); err != nil {
			return ignoreEOF(err)
		}
		pipe, err := pipes.get()
		if err != nil {
			return err
		}
		n, err := pipe.fill(from)
		if errors.Is(err, syscall.EINVAL) || errors.Is(err, syscall.ENOSYS) {
			// A kernel that can't splice these sockets, as in some sandboxes.
			pipe.close()
			_, err := io.Copy(writerOnly{dst, moved}, src)
			return err
		}
		if err == nil {
			err = pipe.drain(to, n)
		}
		if err != nil {
			pipe.close() // it may hold bytes that belong to this tunnel
			return ignoreEOF(err)
		}
		pipes.put(pipe)
		moved(n)
	}
}

func ignoreEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// waitReadable returns when src has something to read; io.EOF is its end.
func waitReadable(src syscall.RawConn) error {
	var n int
	var failed error
	var one [1]byte
	err := src.Read(func(fd uintptr) bool {
		n, _, failed = recvPeek(int(fd), one[:])
		return !errors.Is(failed, syscall.EAGAIN)
	})
	if err = errors.Join(err, os.NewSyscallError("recvfrom", failed)); err != nil {
		return err
	}
	if n == 0 {
		return io.EOF
	}
	return nil
}

// recvPeek looks at the first byte and leaves it where it is.
func recvPeek(fd int, p []byte) (n int, from syscall.Sockaddr, err error) {
	for {
		n, from, err = syscall.Recvfrom(fd, p, syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		if !errors.Is(err, syscall.EINTR) {
			return n, from, err
		}
	}
}

// pipe is a kernel buffer between two sockets.
type pipe struct {
	reader, writer int
}

const (
	// pipeBytes is the most that is moved at once. Larger ones gain nothing on
	// loopback, and each busy tunnel may fill one in each direction.
	pipeBytes  = 256 << 10
	setPipeSz  = 1031 // F_SETPIPE_SZ, fcntl(2)
	spliceMove = 1    // SPLICE_F_MOVE, splice(2)
	spliceNow  = 2    // SPLICE_F_NONBLOCK
)

func newPipe() (*pipe, error) {
	var fds [2]int
	if err := syscall.Pipe2(fds[:], syscall.O_CLOEXEC|syscall.O_NONBLOCK); err != nil {
		return nil, os.NewSyscallError("pipe2", err)
	}
	// The default of 64 KiB works too, in smaller portions.
	_, _, _ = syscall.Syscall(syscall.SYS_FCNTL, uintptr(fds[1]), setPipeSz, pipeBytes)
	return &pipe{reader: fds[0], writer: fds[1]}, nil
}

func (p *pipe) close() {
	_ = syscall.Close(p.reader)
	_ = syscall.Close(p.writer)
}

// fill moves what src has into the pipe, which is empty. io.EOF is the end.
func (p *pipe) fill(src syscall.RawConn) (n int, err error) {
	var failed error
	err = src.Read(func(fd uintptr) bool {
		n, failed = splice(int(fd), p.writer, pipeBytes)
		return !errors.Is(failed, syscall.EAGAIN)
	})
	if err = errors.Join(err, failed); err != nil {
		return 0, err
	}
	if n == 0 {
		return 0, io.EOF
	}
	return n, nil
}

// drain moves the n bytes of the pipe to dst.
func (p *pipe) drain(dst syscall.RawConn, n int) error {
	for n > 0 {
		var moved int
		var failed error
		err := dst.Write(func(fd uintptr) bool {
			moved, failed = splice(p.reader, int(fd), n)
			return !errors.Is(failed, syscall.EAGAIN)
		})
		if err = errors.Join(err, failed); err != nil {
			return err
		}
		if moved == 0 {
			return io.ErrUnexpectedEOF
		}
		n -= moved
	}
	return nil
}

func splice(from, to, most int) (int, error) {
	for {
		n, err := syscall.Splice(from, nil, to, nil, most, spliceMove|spliceNow)
		if !errors.Is(err, syscall.EINTR) {
			return int(n), os.NewSyscallError("splice", err)
		}
	}
}

// pipePool keeps a few empty pipes for the next portion. The runtime's limit on
// running goroutines bounds how many are of use at once; a tunnel whose reader
// is slow holds its own.
type pipePool struct {
	free chan *pipe
}

func newPipePool() *pipePool {
	return &pipePool{free: make(chan *pipe, 4*runtime.GOMAXPROCS(0))}
}

func (p *pipePool) get() (*pipe, error) {
	select {
	case pipe := <-p.free:
		return pipe, nil
	default:
		return newPipe()
	}
}

func (p *pipePool) put(pipe *pipe) {
	select {
	case p.free <- pipe:
	default:
		pipe.close()
	}
}

// close frees the pipes that wait; those in use are closed by their tunnels or
// with the process.
func (p *pipePool) close() {
	for {
		select {
		case pipe := <-p.free:
			pipe.close()
		default:
			return
		}
	}
}

// writerOnly hides ReadFrom, which would try to splice again, and counts.
type writerOnly struct {
	io.Writer
	moved func(n int)
}

func (w writerOnly) Write(p []byte) (int, error) {
	n, err := w.Writer.Write(p)
	w.moved(n)
	return n, err
}
