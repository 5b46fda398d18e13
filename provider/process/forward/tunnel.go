package forward

import (
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// tunnel is one CONNECT after its answer was sent.
type tunnel struct {
	client   *net.TCPConn
	upstream *net.TCPConn
	pipes    *pipePool

	base     time.Time    // what active counts from
	active   atomic.Int64 // nanoseconds after base at which something moved
	sent     atomic.Int64 // bytes from the client
	received atomic.Int64 // bytes to the client

	closeOnce sync.Once
	cause     error // why close was called; set once, read after the end
}

// The reasons for which the proxy itself ends a tunnel.
var (
	errIdle     = errors.New("idle for too long")
	errMaximum  = errors.New("reached its maximum duration")
	errShutdown = errors.New("the proxy is shutting down")
)

func newTunnel(client, upstream *net.TCPConn, pipes *pipePool) *tunnel {
	return &tunnel{client: client, upstream: upstream, pipes: pipes, base: time.Now()}
}

// run moves bytes both ways until both directions have ended, each of which may
// end alone (a half-closed connection), or until one fails. It returns why the
// proxy ended it, or nil.
func (t *tunnel) run(idle, maximum time.Duration) error {
	stopIdle := t.watchIdle(idle)
	defer stopIdle()
	if maximum > 0 {
		limit := time.AfterFunc(maximum, func() { t.close(errMaximum) })
		defer limit.Stop()
	}
	var up sync.WaitGroup
	up.Go(func() { t.oneWay(t.upstream, t.client, &t.sent) })
	t.oneWay(t.client, t.upstream, &t.received)
	up.Wait()
	t.close(nil)
	return t.cause
}

// oneWay relays one direction and passes its end on.
func (t *tunnel) oneWay(dst, src *net.TCPConn, count *atomic.Int64) {
	err := relay(dst, src, t.pipes, func(n int) {
		count.Add(int64(n))
		t.active.Store(int64(time.Since(t.base)))
	})
	if err == nil {
		err = dst.CloseWrite()
	}
	if err != nil {
		// A broken direction can't be told to the other side but by closing.
		t.close(nil)
	}
}

// watchIdle closes the tunnel when nothing moved in either direction for so
// long. Its timer is not set again by every portion: when it fires, it is set
// for what is left since the last one.
func (t *tunnel) watchIdle(idle time.Duration) (stop func()) {
	if idle <= 0 {
		return func() {}
	}
	var mu sync.Mutex // guards timer and stopped
	var timer *time.Timer
	stopped := false
	var look func()
	look = func() {
		left := idle - (time.Since(t.base) - time.Duration(t.active.Load()))
		if left <= 0 {
			t.close(errIdle)
			return
		}
		mu.Lock()
		defer mu.Unlock()
		if !stopped {
			timer = time.AfterFunc(left, look)
		}
	}
	look()
	return func() {
		mu.Lock()
		defer mu.Unlock()
		stopped = true
		if timer != nil {
			timer.Stop()
		}
	}
}

// close ends both connections; the first caller's cause counts.
func (t *tunnel) close(cause error) {
	t.closeOnce.Do(func() {
		t.cause = cause
		_ = t.client.Close()
		_ = t.upstream.Close()
	})
}
