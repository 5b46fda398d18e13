package kube

import (
	"context"
	"slices"

	"github.com/egress-proxies/egress/provider"
)

// Watch sends every change of a pod, from the one watch that all pods share.
func (p *Provider) Watch(ctx context.Context, ref provider.Ref) (<-chan provider.Instance, error) {
	if err := provider.CheckName(ref.Name); err != nil {
		return nil, err
	}
	w, err := p.hub.add(ref.Name)
	if err != nil {
		return nil, err
	}
	pod, err := p.pod(ctx, ref.Name)
	if err != nil {
		p.hub.remove(w)
		return nil, err
	}
	changes := make(chan provider.Instance)
	if !p.hub.keep(w, pod.UID, func() { // ends with ctx, with the pod, or with the provider
		defer p.hub.remove(w)
		defer close(changes)
		p.relay(ctx, w, describe(pod), changes)
	}) {
		p.hub.remove(w)
		return nil, errClosed
	}
	return changes, nil
}

// relay sends what differs from what was sent last, until the last value.
func (p *Provider) relay(ctx context.Context, w *watched, now provider.Instance, changes chan<- provider.Instance) {
	send := func(instance provider.Instance) bool {
		select {
		case changes <- instance:
			return instance.State != provider.Stopped && instance.State != provider.Unknown
		case <-ctx.Done():
			return false
		case <-p.hub.quit():
			return false
		}
	}
	if !send(now) {
		return
	}
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.hub.quit():
			return
		case n := <-w.news:
			next, known := p.interpret(ctx, n, now)
			if !known || !changed(now, next) {
				continue
			}
			if !send(next) {
				return
			}
			now = next
		}
	}
}

// interpret turns news into the state of the pod that is watched; known is
// false for news of another pod of the name.
func (p *Provider) interpret(ctx context.Context, n news, now provider.Instance) (next provider.Instance, known bool) {
	next = now
	switch {
	case n.broken != nil:
		next.State, next.Reason = provider.Unknown, "the watch ended: "+n.broken.Error()
	case n.pod == nil:
		// A list without the pod may be older than the pod.
		pod, err := p.pod(ctx, now.Name)
		switch {
		case provider.Classify(err) == provider.ErrNotFound || err == nil && string(pod.UID) != now.ID:
			next.State, next.Reason = provider.Stopped, "the pod was deleted"
		case err != nil:
			next.State, next.Reason = provider.Unknown, err.Error()
		default:
			next = describe(pod)
		}
	case string(n.pod.UID) != now.ID:
		return now, false
	case n.gone:
		next = describe(n.pod)
		if next.State != provider.Stopped {
			next.State, next.Reason = provider.Stopped, leaving(n.pod)
		}
	default:
		next = describe(n.pod)
	}
	return next, true
}

func changed(before, after provider.Instance) bool {
	return before.State != after.State || before.Reason != after.Reason || !slices.Equal(before.Addresses, after.Addresses)
}
