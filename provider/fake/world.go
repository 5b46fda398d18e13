package fake

import (
	"maps"
	"slices"
	"sync"

	"github.com/egress-proxies/egress/provider"
)

// World is what exists outside of the plugin: instances and their pieces. A
// second Provider over the same World is a restarted plugin.
type World struct {
	mu      sync.Mutex // guards all of the below
	entries map[string]*entry
	serial  int
}

// entry is what exists under one name. An entry without instance is leftovers.
type entry struct {
	instance provider.Instance // valid when defined
	defined  bool
	pieces   map[string]bool
	cluster  string
	output   []byte
	signals  []string
	auths    []provider.Credentials
	changed  chan struct{} // closed and replaced at every change
}

// NewWorld is an empty world.
func NewWorld() *World { return &World{entries: make(map[string]*entry)} }

// Names lists what exists, whole or in pieces, in order.
func (w *World) Names() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Sorted(maps.Keys(w.entries))
}

// Pieces counts every single thing that exists, so that a leak shows.
func (w *World) Pieces() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	total := 0
	for _, e := range w.entries {
		total += len(e.pieces)
		if e.defined {
			total++
		}
	}
	return total
}

// Created counts the starts that were ever begun.
func (w *World) Created() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.serial
}

// End makes an instance end by itself, as a crash or a shutdown from inside.
func (w *World) End(name string, exit provider.Exit, reason string) {
	w.change(name, func(e *entry) {
		e.instance.State, e.instance.Exit, e.instance.Reason = provider.Stopped, &exit, reason
	})
}

// Vanish removes an instance with all its pieces, as an operator would.
func (w *World) Vanish(name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if e, ok := w.entries[name]; ok {
		delete(w.entries, name)
		close(e.changed)
	}
}

// SetAddress gives an instance another address; an empty one takes it away.
func (w *World) SetAddress(name, address string) {
	w.change(name, func(e *entry) {
		e.instance.Address, e.instance.Addresses = address, []string{address}
		e.instance.State = provider.Running
		if address == "" {
			e.instance.Addresses, e.instance.State = nil, provider.Provisioning
		}
	})
}

// Print appends to the output of an instance.
func (w *World) Print(name, text string) {
	w.change(name, func(e *entry) { e.output = append(e.output, text...) })
}

// Signals are those that the instance was sent, Stop's included.
func (w *World) Signals(name string) []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	if e, ok := w.entries[name]; ok {
		return slices.Clone(e.signals)
	}
	return nil
}

// Rotations are the credentials that the instance was given while it ran.
func (w *World) Rotations(name string) []provider.Credentials {
	w.mu.Lock()
	defer w.mu.Unlock()
	if e, ok := w.entries[name]; ok {
		return slices.Clone(e.auths)
	}
	return nil
}

// change applies f to what exists under name and wakes the watchers; it is
// false when nothing does.
func (w *World) change(name string, f func(*entry)) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	e, ok := w.entries[name]
	if !ok {
		return false
	}
	f(e)
	close(e.changed)
	e.changed = make(chan struct{})
	return true
}

// look copies what is under name, with the channel that tells the next change.
func (w *World) look(name string) (found entry, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	e, ok := w.entries[name]
	if !ok {
		return entry{}, false
	}
	found = *e
	found.pieces = maps.Clone(e.pieces)
	found.instance.Pieces = slices.Sorted(maps.Keys(e.pieces))
	return found, true
}

// put makes sure that there is an entry, to which pieces can be added.
func (w *World) put(name, cluster string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, ok := w.entries[name]; !ok {
		w.entries[name] = &entry{pieces: make(map[string]bool), cluster: cluster, changed: make(chan struct{})}
	}
}

// next counts starts; it makes ids unique.
func (w *World) next() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.serial++
	return w.serial
}
