package kvm

import (
	"context"
	"errors"
	"reflect"
	"time"

	"github.com/egress-proxies/egress/provider"
	"github.com/egress-proxies/egress/provider/kvm/virt"
)

const (
	// addressPoll is how often a machine without an address is looked at: no
	// event tells of a DHCP lease.
	addressPoll = 2 * time.Second
	// idlePoll catches an address that changes under a running machine.
	idlePoll = time.Minute
)

// Watch follows libvirt's events, and looks by itself for what has none.
func (p *Provider) Watch(ctx context.Context, ref provider.Ref) (<-chan provider.Instance, error) {
	if err := provider.CheckName(ref.Name); err != nil {
		return nil, err
	}
	h, d, err := p.find(ctx, ref)
	if err != nil {
		return nil, err
	}
	changes, err := h.Changes(ctx, d.Name)
	if err != nil {
		return nil, err
	}
	// After the subscription, so that nothing falls between.
	first, err := p.describe(ctx, h, d, true)
	if err != nil {
		return nil, err
	}
	updates := make(chan provider.Instance, 1)
	updates <- first
	w := watcher{p: p, h: h, d: d, last: first, updates: updates}
	go w.run(ctx, changes)
	return updates, nil
}

// watcher is one watch. It ends with ctx, whose owner waits for the channel to
// be closed.
type watcher struct {
	p       *Provider
	h       *host
	d       virt.Domain
	last    provider.Instance
	updates chan provider.Instance
}

func (w *watcher) run(ctx context.Context, changes <-chan struct{}) {
	defer close(w.updates)
	for {
		timer := time.NewTimer(w.poll())
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case _, ok := <-changes:
			timer.Stop()
			if !ok {
				if ctx.Err() == nil {
					w.broken(ctx, "the connection to the host broke")
				}
				return
			}
		case <-timer.C:
		}
		if !w.look(ctx) {
			return
		}
	}
}

func (w *watcher) poll() time.Duration {
	if w.last.State == provider.Running {
		return idlePoll
	}
	return addressPoll
}

// look sends the state when it changed; it is false when there is no more to
// come.
func (w *watcher) look(ctx context.Context) bool {
	now, err := w.p.describe(ctx, w.h, w.d, true)
	switch {
	case errors.Is(err, provider.ErrNotFound):
		now = w.last
		now.State, now.Address, now.Addresses = provider.Stopped, "", nil
		now.Exit, now.Reason = exit(virt.EndDestroyed), "the domain was removed from its host"
		w.send(ctx, now)
		return false
	case err != nil:
		w.broken(ctx, err.Error())
		return false
	}
	if now.State == provider.Provisioning && w.last.State == provider.Running {
		// No source answers just now, as while a guest reboots; the machine
		// keeps the address that it had.
		now.State, now.Address, now.Addresses = provider.Running, w.last.Address, w.last.Addresses
	}
	if !reflect.DeepEqual(now, w.last) {
		w.last = now
		w.send(ctx, now)
	}
	return true
}

func (w *watcher) broken(ctx context.Context, reason string) {
	w.last.State, w.last.Reason = provider.Unknown, reason
	w.send(ctx, w.last)
}

func (w *watcher) send(ctx context.Context, instance provider.Instance) {
	select {
	case w.updates <- instance:
	case <-ctx.Done():
	}
}
