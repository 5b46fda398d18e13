package virt

import (
	"context"
	"sync"

	"github.com/digitalocean/go-libvirt"
)

// changes tells whoever asked for a machine that something happened to it.
type changes struct {
	mu         sync.Mutex // guards the fields below
	subscribed chan struct{}
	err        error
	over       bool
	listeners  map[chan struct{}]string // to the name of the machine
}

// Changes sends a value after each event of the named machine: it started,
// stopped, crashed, was undefined, its guest agent came or went. Several in a
// row are one value. The channel is closed when ctx ends, and when the
// connection breaks, after which nothing is known and the caller asks again.
func (h *Host) Changes(ctx context.Context, name string) (<-chan struct{}, error) {
	s, err := h.session(ctx)
	if err != nil {
		return nil, h.translate("ConnectDomainEventCallbackRegisterAny", err)
	}
	if err := h.subscribe(ctx, s); err != nil {
		return nil, err
	}
	c := &s.changes
	listener := make(chan struct{}, 1)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.over {
		close(listener)
		return listener, nil
	}
	c.listeners[listener] = name
	stop := context.AfterFunc(ctx, func() { c.remove(listener) })
	_ = stop // remove is harmless after the connection's own end
	return listener, nil
}

func (c *changes) remove(listener chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, ok := c.listeners[listener]; ok {
		delete(c.listeners, listener)
		close(listener)
	}
}

func (c *changes) notify(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for listener, wanted := range c.listeners {
		if wanted == name {
			select {
			case listener <- struct{}{}:
			default: // it has one to come already
			}
		}
	}
}

func (c *changes) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.over = true
	for listener := range c.listeners {
		close(listener)
	}
	c.listeners = nil
}

// subscribe registers with the daemon once for each connection, for all
// machines, and stays registered until the connection ends.
func (h *Host) subscribe(ctx context.Context, s *session) error {
	c := &s.changes
	c.mu.Lock()
	if c.subscribed != nil {
		wait := c.subscribed
		c.mu.Unlock()
		select {
		case <-wait:
			return c.err
		case <-ctx.Done():
			return h.translate("ConnectDomainEventCallbackRegisterAny", context.Cause(ctx))
		}
	}
	c.subscribed = make(chan struct{})
	c.listeners = make(map[chan struct{}]string)
	c.mu.Unlock()

	err := h.register(ctx, s)
	c.mu.Lock()
	c.err = err
	close(c.subscribed)
	if err != nil {
		c.subscribed = nil // the next one tries again
	}
	c.mu.Unlock()
	return err
}

func (h *Host) register(ctx context.Context, s *session) error {
	var machines <-chan libvirt.DomainEventLifecycleMsg
	err := h.callOn(ctx, s, "ConnectDomainEventCallbackRegisterAny", []any{"event", "lifecycle"}, func(l *libvirt.Libvirt) error {
		var err error
		machines, err = l.LifecycleEvents(h.life)
		return err
	})
	if err != nil {
		return err
	}
	var agents <-chan any
	err = h.callOn(ctx, s, "ConnectDomainEventCallbackRegisterAny", []any{"event", "agent-lifecycle"}, func(l *libvirt.Libvirt) error {
		var err error
		agents, err = l.SubscribeEvents(h.life, libvirt.DomainEventIDAgentLifecycle, nil)
		return err
	})
	if err != nil {
		s.close() // or the first registration would have no reader
		h.wait.Go(func() { drain(machines) })
		return err
	}
	h.wait.Go(func() {
		defer s.changes.end()
		h.pump(s, machines, agents)
	})
	return nil
}

// pump passes the events on until both streams end with their connection.
func (h *Host) pump(s *session, machines <-chan libvirt.DomainEventLifecycleMsg, agents <-chan any) {
	for machines != nil || agents != nil {
		select {
		case event, ok := <-machines:
			if !ok {
				machines = nil
				continue
			}
			s.changes.notify(event.Dom.Name)
		case event, ok := <-agents:
			if !ok {
				agents = nil
				continue
			}
			if event, ok := event.(*libvirt.DomainEventCallbackAgentLifecycleMsg); ok {
				s.changes.notify(event.Dom.Name)
			}
		}
	}
}

func drain(machines <-chan libvirt.DomainEventLifecycleMsg) {
	for range machines {
	}
}
