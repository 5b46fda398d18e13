package process

import (
	"context"
	"errors"
	"time"

	"github.com/egress-proxies/egress/provider"
	"github.com/egress-proxies/egress/provider/process/supervise"
)

// Watch sends the state now and at every change. It waits for the end of the
// supervisor through the kernel and costs nothing in between.
func (p *Provider) Watch(ctx context.Context, ref provider.Ref) (<-chan provider.Instance, error) {
	first, err := p.Get(ctx, ref)
	if err != nil {
		return nil, err
	}
	states := make(chan provider.Instance)
	go func() {
		defer close(states)
		p.watch(ctx, ref, first, states)
	}()
	return states, nil
}

func (p *Provider) watch(ctx context.Context, ref provider.Ref, current provider.Instance, states chan<- provider.Instance) {
	send := func(instance provider.Instance) bool {
		select {
		case states <- instance:
			return true
		case <-ctx.Done():
			return false
		}
	}
	if !send(current) {
		return
	}
	for current.State != provider.Stopped {
		// Taken before the look, so that a change in between is not missed.
		changed := p.nextChange()
		next, err := p.Get(ctx, ref)
		switch {
		case ctx.Err() != nil:
			return
		case errors.Is(err, provider.ErrNotFound):
			current.State, current.Reason = provider.Stopped, "deleted"
			send(current)
			return
		case err != nil:
			current.State, current.Reason = provider.Unknown, err.Error()
			send(current)
			return
		}
		if next.State != current.State {
			current = next
			if !send(current) {
				return
			}
			continue
		}
		if err := p.waitForChange(ctx, ref, changed); err != nil {
			return
		}
	}
}

// startPoll is how often a watch looks while the process is being started.
const startPoll = 50 * time.Millisecond

// waitForChange returns when the state may have changed, and with an error when
// ctx ends.
func (p *Provider) waitForChange(ctx context.Context, ref provider.Ref, changed <-chan struct{}) error {
	waiting, cancel := context.WithCancel(ctx)
	defer cancel()
	dir, err := p.find(ctx, ref)
	if err != nil {
		return err
	}
	snapshot, err := supervise.Inspect(dir)
	if err != nil || snapshot.Phase != supervise.Running {
		timer := time.NewTimer(startPoll)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-changed:
		case <-ctx.Done():
		}
		return ctx.Err()
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		waitForEnd(waiting, snapshot.Run.Supervisor)
	}()
	select {
	case <-ended:
	case <-changed:
		cancel()
		<-ended
	}
	return ctx.Err()
}
