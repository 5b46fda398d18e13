package process

import (
	"context"
	"errors"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/egress-proxies/egress/provider/process/supervise"
)

// endPoll is how often an old kernel without pidfds is asked.
const endPoll = time.Second

// waitForEnd returns when the process has ended or ctx has.
func waitForEnd(ctx context.Context, process supervise.Process) {
	fd, err := unix.PidfdOpen(process.PID, unix.PIDFD_NONBLOCK)
	if err != nil {
		pollForEnd(ctx, process)
		return
	}
	// The runtime's poller waits for it as for a socket.
	file := os.NewFile(uintptr(fd), "pidfd")
	defer func() { _ = file.Close() }()
	if !process.Alive() { // compared after the open: the descriptor is of the process that was compared
		return
	}
	stop := context.AfterFunc(ctx, func() { _ = file.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	raw, err := file.SyscallConn()
	if err == nil {
		err = raw.Read(func(fd uintptr) bool {
			set := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
			n, err := unix.Poll(set, 0)
			return n > 0 || (err != nil && !errors.Is(err, unix.EINTR))
		})
	}
	if err != nil && ctx.Err() == nil {
		pollForEnd(ctx, process)
	}
}

func pollForEnd(ctx context.Context, process supervise.Process) {
	ticker := time.NewTicker(endPoll)
	defer ticker.Stop()
	for process.Alive() {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}
