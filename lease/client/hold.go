package client

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/egress-proxies/egress/lease/api"
)

// Held is a lease that renews itself until it is released.
type Held struct {
	client *Client
	// mu guards the lease, which a renewal may move to another proxy.
	mu    sync.Mutex
	lease api.Lease

	stop context.CancelFunc
	done chan struct{}
	// lost is closed when the lease has ended; err says why.
	lost chan struct{}
	err  error
}

// Hold acquires one lease and renews it, each time a third of its time has
// passed, until Release. moved is called when a session moved to another proxy;
// it may be nil.
func (c *Client) Hold(ctx context.Context, in api.Acquire, moved func(api.Lease)) (*Held, error) {
	in.Count = 1
	sent := time.Now()
	leases, err := c.Acquire(ctx, in, "")
	if err != nil {
		return nil, err
	}
	if in.Wait > 0 {
		sent = time.Now() // it was granted after the wait
	}
	renewing, stop := context.WithCancel(context.WithoutCancel(ctx))
	h := &Held{client: c, lease: leases[0], stop: stop, done: make(chan struct{}), lost: make(chan struct{})}
	go h.renew(renewing, sent, moved)
	return h, nil
}

// Lease is the lease as it is now.
func (h *Held) Lease() api.Lease {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.lease
}

// Lost is closed when the lease has ended without Release; Err says why.
func (h *Held) Lost() <-chan struct{} { return h.lost }

// Err is why the lease ended. Call it after Lost was closed.
func (h *Held) Err() error { return h.err }

// Report tells how the proxy did; see Client.Report.
func (h *Held) Report(ctx context.Context, result, target string) (*api.Cooldown, error) {
	return h.client.Report(ctx, h.Lease().ID, result, target)
}

// Release ends the renewals and gives the lease back.
func (h *Held) Release(ctx context.Context) error {
	h.stop()
	<-h.done
	return h.client.Release(ctx, h.Lease().ID)
}

// errExpired: the service could not be reached until the lease was over.
var errExpired = errors.New("the lease expired: it could not be renewed in time")

// renew runs until the lease is lost or ctx ends.
func (h *Held) renew(ctx context.Context, sent time.Time, moved func(api.Lease)) {
	defer close(h.done)
	for {
		// Time counts from when the request was sent: the service's clock
		// started no earlier.
		left := time.Duration(h.Lease().TTLSeconds * float64(time.Second))
		ends := sent.Add(left)
		timer := time.NewTimer(time.Until(sent.Add(left / 3)))
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
		for {
			began := time.Now()
			call, cancel := context.WithDeadline(ctx, ends)
			l, err := h.client.Renew(call, h.Lease().ID, 0)
			cancel()
			if err == nil {
				h.mu.Lock()
				h.lease = l
				h.mu.Unlock()
				sent = began
				if l.MovedFrom != "" && moved != nil {
					moved(l)
				}
				break
			}
			var p *api.Problem
			if ctx.Err() != nil {
				return
			}
			if errors.As(err, &p) && p.Status < 500 && p.Code() != api.CodeNoCapacity && p.Code() != api.CodeTooMany {
				h.lose(err)
				return
			}
			if time.Now().After(ends) {
				h.lose(errors.Join(errExpired, err))
				return
			}
			pauseFor(ctx, min(left/10, time.Second))
		}
	}
}

func (h *Held) lose(err error) {
	h.err = err
	close(h.lost)
}

func pauseFor(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}
