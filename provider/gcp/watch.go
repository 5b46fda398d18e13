package gcp

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"cloud.google.com/go/compute/apiv1/computepb"

	"github.com/egress-proxies/egress/provider"
)

// hub looks after all watched machines with one list for each interval, however
// many there are.
type hub struct {
	p *Provider

	mu      sync.Mutex // guards what follows
	watched map[*watched]bool
	running bool
	closed  bool
	cancel  context.CancelFunc
	done    sync.WaitGroup
}

// watched is one watch.
type watched struct {
	ref  provider.Ref
	id   string
	node string
	// news holds the latest state that the watch has not taken yet.
	news chan provider.Instance
}

// tell replaces what was not taken.
func (w *watched) tell(instance provider.Instance) {
	for {
		select {
		case w.news <- instance:
			return
		default:
		}
		select {
		case <-w.news:
		default:
		}
	}
}

// Watch sends every change of a machine, also of its external address.
func (p *Provider) Watch(ctx context.Context, ref provider.Ref) (<-chan provider.Instance, error) {
	now, err := p.Get(ctx, ref)
	if err != nil {
		return nil, err
	}
	w := &watched{ref: now.Ref, id: now.ID, node: now.Labels.Node, news: make(chan provider.Instance, 1)}
	if err := p.hub.add(w); err != nil {
		return nil, err
	}
	changes := make(chan provider.Instance)
	go func() { // ends with ctx, with the machine, or with the provider
		defer p.hub.done.Done()
		defer close(changes)
		defer p.hub.remove(w)
		for next, last := now, (*provider.Instance)(nil); ; {
			if last == nil || changed(*last, next) {
				select {
				case changes <- next:
				case <-ctx.Done():
					return
				}
				if next.State == provider.Stopped {
					return
				}
				last = &next
			}
			select {
			case news, open := <-w.news:
				if !open {
					return
				}
				last, next = new(*last), news
			case <-ctx.Done():
				return
			}
		}
	}()
	return changes, nil
}

func changed(before, after provider.Instance) bool {
	return before.State != after.State || before.Reason != after.Reason || !slices.Equal(before.Addresses, after.Addresses)
}

func (h *hub) add(w *watched) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return provider.Transientf("the provider is closed")
	}
	if h.watched == nil {
		h.watched = make(map[*watched]bool)
	}
	h.watched[w] = true
	h.done.Add(1) // of the watch itself
	if !h.running {
		ctx, cancel := context.WithCancel(context.Background())
		h.running, h.cancel = true, cancel
		h.done.Go(func() { h.run(ctx) })
	}
	return nil
}

// remove ends the loop with the last watch.
func (h *hub) remove(w *watched) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.watched, w)
	if len(h.watched) == 0 && h.running {
		h.running = false
		h.cancel()
	}
}

func (h *hub) close() {
	h.mu.Lock()
	h.closed = true
	for w := range h.watched {
		w.tell(provider.Instance{Ref: w.ref, State: provider.Unknown, Reason: "the plugin ends"})
		close(w.news)
	}
	if h.running {
		h.running = false
		h.cancel()
	}
	h.watched = nil
	h.mu.Unlock()
	h.done.Wait()
}

func (h *hub) run(ctx context.Context) {
	interval := h.p.timing.watch
	for pause(ctx, interval) == nil {
		if err := h.look(ctx); err == nil {
			interval = h.p.timing.watch
			continue
		} else if ctx.Err() == nil && interval == h.p.timing.watch {
			h.p.env.Logger.Warn("the state of the machines is unknown, asking again", "error", err)
		}
		interval = min(2*interval, h.p.timing.watchMax)
	}
}

// look lists once and tells every watch what there is.
func (h *hub) look(ctx context.Context) error {
	h.mu.Lock()
	all := make([]*watched, 0, len(h.watched))
	nodes := map[string]bool{}
	for w := range h.watched {
		all = append(all, w)
		nodes[w.node] = true
	}
	h.mu.Unlock()
	filter := h.p.managed()
	if node := first(nodes); len(nodes) == 1 && node != "" {
		filter += fmt.Sprintf(" AND labels.%s=%s", provider.LabelNode, labelValue(node))
	}
	machines, silent, err := h.p.list(ctx, filter)
	if err != nil {
		return err
	}
	listed := make(map[provider.Ref]*computepb.Instance, len(machines))
	for _, machine := range machines {
		listed[provider.Ref{Name: machine.GetName(), Zone: zoneOf(machine.GetZone())}] = machine
	}
	for _, w := range all {
		if slices.Contains(silent, w.ref.Zone) {
			continue // unknown
		}
		instance, known := h.p.now(ctx, w, listed[w.ref])
		if !known {
			continue
		}
		h.mu.Lock()
		if h.watched[w] {
			w.tell(instance)
		}
		h.mu.Unlock()
	}
	return nil
}

func first(set map[string]bool) string {
	for one := range set {
		return one
	}
	return ""
}

// now is a machine's state after a list. One that the list lacks is asked for
// by itself before it counts as gone: somebody may have taken its labels.
func (p *Provider) now(ctx context.Context, w *watched, listed *computepb.Instance) (provider.Instance, bool) {
	if listed == nil {
		found, err := p.get(ctx, w.ref.Zone, w.ref.Name)
		if err != nil && provider.Classify(err) != provider.ErrNotFound {
			return provider.Instance{}, false
		}
		listed = found
		if err != nil {
			listed = nil
		}
	}
	if listed != nil && fmt.Sprint(listed.GetId()) == w.id {
		return p.describe(ctx, listed), true
	}
	id := parseID(w.id)
	gone := provider.Instance{Ref: w.ref, ID: w.id, State: provider.Stopped, Reason: "it is gone: somebody deleted it"}
	if why := p.operationOn(ctx, w.ref.Zone, id); why != "" && !p.stops.asked(id) {
		gone.Reason = "it is gone: " + why
	}
	p.seen.note(gone)
	return gone, true
}

// pause waits, and gives the context's error when it ends first.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
