package virt

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/digitalocean/go-libvirt"
)

// call runs one RPC on the shared connection. rpc is its public name in
// libvirt's API, given is what it is about, as keys and values for the log.
func (h *Host) call(ctx context.Context, rpc string, given []any, fn func(*libvirt.Libvirt) error) error {
	return h.callOn(ctx, nil, rpc, given, fn)
}

// ask is call for an RPC that answers with something. A call that was given up
// may be answered later, when nobody may write any more to what its caller
// reads: so an answer is handed over only with its success.
func ask[T any](ctx context.Context, h *Host, rpc string, given []any, fn func(*libvirt.Libvirt) (T, error)) (T, error) {
	answers := make(chan T, 1)
	err := h.call(ctx, rpc, given, func(l *libvirt.Libvirt) error {
		answer, err := fn(l)
		if err == nil {
			answers <- answer
		}
		return err
	})
	if err != nil {
		var none T
		return none, err
	}
	return <-answers, nil
}

// callOn is call on one connection, or on the shared one when on is nil.
func (h *Host) callOn(ctx context.Context, on *session, rpc string, given []any, fn func(*libvirt.Libvirt) error) error {
	begin := time.Now()
	err := h.attempt(ctx, on, fn)
	h.trace(rpc, given, begin, err)
	return h.translate(rpc, err)
}

// attempt gets a place in line, a connection and the daemon's answer, each as
// long as ctx lasts. A request that could not be sent at all, because the
// connection turned out to be dead, is sent again on a new one; one that may
// have been received is not.
func (h *Host) attempt(ctx context.Context, on *session, fn func(*libvirt.Libvirt) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, callTimeout, errNoAnswer)
	defer cancel()
	if err := ctx.Err(); err != nil {
		return context.Cause(ctx)
	}
	select {
	case h.slots <- struct{}{}:
	case <-ctx.Done():
		return fmt.Errorf("%d calls wait for the daemon's answer already: %w", callsInFlight, context.Cause(ctx))
	}
	for try := 0; ; try++ {
		s, err := on, error(nil)
		if s == nil {
			s, err = h.session(ctx)
		}
		if err != nil {
			<-h.slots
			return err
		}
		answer := make(chan error, 1)
		h.wait.Go(func() {
			err := fn(s.libvirt)
			if broken(err) {
				s.close()
			}
			answer <- err
		})
		select {
		case err = <-answer:
		case <-ctx.Done():
			h.wait.Go(func() {
				<-answer
				<-h.slots
			})
			return fmt.Errorf("no answer: %w", context.Cause(ctx))
		}
		if errors.Is(err, syscall.EINVAL) && on == nil && try == 0 {
			continue
		}
		<-h.slots
		return err
	}
}

// broken says whether an error is the connection's and not the daemon's
// answer. Only then is the connection made anew.
func broken(err error) bool {
	var answered libvirt.Error
	return err != nil && !errors.As(err, &answered) && !errors.Is(err, libvirt.ErrUnsupported)
}

// trace leaves the line of one call.
func (h *Host) trace(rpc string, given []any, begin time.Time, err error) {
	if !h.log.IsDebug() {
		return
	}
	line := append([]any{"rpc", rpc}, given...)
	line = append(line, "duration", time.Since(begin).Round(time.Microsecond))
	if err != nil {
		line = append(line, "error", err.Error())
		if code := CodeName(err); code != "" {
			line = append(line, "code", code)
		}
	}
	h.log.Debug("libvirt call", line...)
}

// traceXML shows a document; they are long, so at trace level only.
func (h *Host) traceXML(rpc, xml string) {
	if h.log.IsTrace() {
		h.log.Trace("libvirt document", "rpc", rpc, "xml", xml)
	}
}
