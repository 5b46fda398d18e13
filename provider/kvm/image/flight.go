package image

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/egress-proxies/egress/provider"
)

// flight is one download and the targets that it is for. It lasts over as many
// attempts as it takes to read the file once from start to end.
type flight struct {
	cache  *Cache
	source Source
	ctx    context.Context
	cancel context.CancelCauseFunc

	received, total atomic.Int64

	// Guarded by cache.mu:

	// deliveries are those that have no result yet, by target.
	deliveries map[string]*delivery
	// attempt is the one under way, once it knows what it reads.
	attempt *attempt
	// over is set when nothing can be added any more.
	over bool
}

// delivery is the image on its way to one target.
type delivery struct {
	flight *flight
	target Target
	ctx    context.Context
	cancel context.CancelFunc

	// done is closed when base and err are the result.
	done chan struct{}
	base Base
	err  error

	waiters int  // guarded by cache.mu
	settled bool // guarded by cache.mu
}

func newFlight(c *Cache, source Source) *flight {
	f := &flight{cache: c, source: source, deliveries: map[string]*delivery{}}
	f.ctx, f.cancel = context.WithCancelCause(c.ctx)
	f.total.Store(-1)
	return f
}

// add adds a target with one waiter, or returns nil when it is too late. The
// caller holds cache.mu.
func (f *flight) add(target Target) *delivery {
	if f.over {
		return nil
	}
	d := &delivery{flight: f, target: target, done: make(chan struct{}), waiters: 1}
	d.ctx, d.cancel = context.WithCancel(f.ctx)
	if f.attempt != nil && !f.attempt.deliver(d) {
		d.cancel()
		return nil
	}
	f.deliveries[target.String()] = d
	return d
}

// settle gives a delivery its result, and ends the flight with its last one.
// The caller holds cache.mu.
func (f *flight) settle(d *delivery, base Base, err error) {
	if d.settled {
		return
	}
	d.base, d.err, d.settled = base, err, true
	close(d.done)
	d.cancel()
	delete(f.deliveries, d.target.String())
	if len(f.deliveries) == 0 {
		f.over = true
		f.cancel(errAbandoned)
	}
}

// redos is how often a file is read anew because it changed, or because its
// server can't go on in the middle.
const redos = 4

// run makes attempts until every delivery has its result.
func (f *flight) run() {
	defer f.cache.wg.Done()
	defer f.cancel(nil)
	var err error
	for try := 1; try <= redos; try++ {
		if err = f.once(); err == nil || !errors.Is(err, errRedo) || f.ctx.Err() != nil {
			break
		}
		f.cache.options.Logger.Info("fetching an image: starting again", "image", f.source.String(), "error", err)
		if pause := f.cache.options.pause(f.ctx, try); pause != nil {
			err = pause
			break
		}
	}
	f.cache.mu.Lock()
	defer f.cache.mu.Unlock()
	f.over = true
	if errors.Is(err, errRedo) {
		err = provider.Transientf("%w: tried %d times", err, redos)
	}
	if err == nil {
		err = provider.Transientf("the download ended without a result")
	}
	for _, d := range f.deliveries {
		f.settle(d, Base{}, err)
	}
	f.cache.forget(f)
}

// once opens the file, reads it to its end and waits for the targets. An error
// is of the file; those of the targets go to their deliveries.
func (f *flight) once() error {
	ctx, cancel := context.WithCancelCause(f.ctx)
	defer cancel(nil)
	f.received.Store(0)
	in, err := f.open(ctx)
	if err != nil {
		return err
	}
	defer in.Close()
	f.total.Store(in.total)
	a := newAttempt(f, in.id)
	f.cache.mu.Lock()
	f.attempt = a
	for _, d := range f.deliveries {
		a.deliver(d)
	}
	f.cache.mu.Unlock()

	err = a.read(ctx, in)

	f.cache.mu.Lock()
	f.attempt = nil
	f.over = f.over || !errors.Is(err, errRedo)
	f.cache.mu.Unlock()
	a.wg.Wait()
	return err
}

func (f *flight) open(ctx context.Context) (*opened, error) {
	if f.source.Path != "" {
		return f.cache.files.open(ctx, f.source)
	}
	return openURL(ctx, f.source, f.cache.options)
}

// progress is one line for people.
func (f *flight) progress() string {
	received, total := f.received.Load(), f.total.Load()
	if total <= 0 {
		return fmt.Sprintf("fetching image %s: %d MiB", f.source, received>>20)
	}
	return fmt.Sprintf("fetching image %s: %d%% of %d MiB", f.source, received*100/total, total>>20)
}

// forget removes a flight that is over. The caller holds c.mu.
func (c *Cache) forget(gone *flight) {
	key := gone.source.key()
	var kept []*flight
	for _, f := range c.flights[key] {
		if f != gone {
			kept = append(kept, f)
		}
	}
	if c.flights[key] = kept; len(kept) == 0 {
		delete(c.flights, key)
	}
}
