package image

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/egress-proxies/egress/provider"
)

// Base is a complete image in a pool.
type Base struct {
	// Target names the host and the pool.
	Target string
	// Volume is the file that overlays stand on.
	Volume Volume
	// Format is that of the file, by its header; overlays must name it.
	Format Format
	// VirtualSize is the size that a guest sees, in bytes.
	VirtualSize int64
	// Digest is the start of the SHA-256 of the file as it was published.
	Digest string
	// UsedAt is when it was last wanted by a task or by `egress images warm`,
	// or fetched, to within an hour; zero when unknown.
	UsedAt time.Time

	marker string // the name of its marker
}

// Cache brings images to hosts. It is safe for concurrent use.
type Cache struct {
	options Options
	owner   string
	files   fileIDs
	ctx     context.Context // ends with Close
	cancel  context.CancelCauseFunc
	wg      sync.WaitGroup // the flights

	mu      sync.Mutex           // guards all below, and the fields of flights and deliveries that say so
	flights map[string][]*flight // by Source.key
	active  map[string]bool      // data volumes being written by this process
}

// errClosed ends what is under way when the cache is closed.
var errClosed = provider.Transientf("the image cache was closed")

// NewCache makes a cache; Close ends it.
func NewCache(options Options) *Cache {
	ctx, cancel := context.WithCancelCause(context.Background())
	return &Cache{
		options: options.withDefaults(),
		owner:   ownerID(options.Owner),
		ctx:     ctx,
		cancel:  cancel,
		flights: map[string][]*flight{},
		active:  map[string]bool{},
	}
}

// Close ends every download, removes what was half written, as far as the
// hosts answer, and waits for all of it.
func (c *Cache) Close() error {
	c.mu.Lock() // no flight begins after this
	c.cancel(errClosed)
	c.mu.Unlock()
	c.wg.Wait()
	return nil
}

// Ensure makes the image exist on the target and returns it. Callers who want
// the same image share one download, also when they want it on different
// targets, and each may give up without harm to the others; a download that
// nobody waits for is ended. Progress is told through provider.Report.
//
// Errors have a class of package provider: a digest that does not match, an
// image that must not be booted and a file that the server does not have are
// ErrPermanent.
func (c *Cache) Ensure(ctx context.Context, source Source, target Target) (Base, error) {
	for try := 1; ; try++ {
		base, err := c.ensure(ctx, source, target)
		var upload *uploadError
		if err == nil || ctx.Err() != nil {
			return base, err
		}
		if c.ctx.Err() != nil {
			return base, errClosed
		}
		retry := errors.As(err, &upload) && provider.Classify(err) == provider.ErrTransient
		if !retry || try == uploadTries {
			return base, fmt.Errorf("image %s: %w", source, err)
		}
		provider.Report(ctx, "image %s: %v: starting again", source, err)
		if err := c.options.pause(ctx, try); err != nil {
			return Base{}, err
		}
	}
}

// uploadTries is how often an upload is begun before a host's trouble becomes
// the caller's.
const uploadTries = 3

func (c *Cache) ensure(ctx context.Context, source Source, target Target) (Base, error) {
	id := declaredID(source)
	if id == "" && source.Path != "" {
		id = c.files.known(source.Path)
	}
	if id != "" {
		base, err := find(ctx, target, id)
		if err == nil {
			c.used(ctx, target, base)
			return base, nil
		}
		if !errors.Is(err, provider.ErrNotFound) {
			return Base{}, err
		}
	}
	d := c.join(source, target)
	if d == nil {
		return Base{}, errClosed
	}
	defer c.leave(d)
	return c.wait(ctx, d)
}

// wait waits for a delivery and passes its progress on.
func (c *Cache) wait(ctx context.Context, d *delivery) (Base, error) {
	ticker := time.NewTicker(c.options.ReportEvery)
	defer ticker.Stop()
	provider.Report(ctx, "fetching image %s", d.flight.source)
	for {
		select {
		case <-d.done:
			return d.base, d.err
		case <-ctx.Done():
			return Base{}, ctx.Err()
		case <-ticker.C:
			provider.Report(ctx, "%s", d.flight.progress())
		}
	}
}

// join finds a delivery to the target that is under way, or adds the target to
// a download that is not too far yet, or begins one. It returns nil when the cache is closed.
func (c *Cache) join(source Source, target Target) *delivery {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ctx.Err() != nil {
		return nil
	}
	key := source.key()
	for _, f := range c.flights[key] {
		if d := f.deliveries[target.String()]; d != nil {
			d.waiters++
			return d
		}
	}
	for _, f := range c.flights[key] {
		if d := f.add(target); d != nil {
			return d
		}
	}
	f := newFlight(c, source)
	c.flights[key] = append(c.flights[key], f)
	d := f.add(target)
	c.wg.Add(1)
	go f.run()
	return d
}

// leave ends a delivery that nobody waits for any more, and a download without
// a delivery.
func (c *Cache) leave(d *delivery) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if d.waiters--; d.waiters == 0 && !d.settled {
		d.flight.settle(d, Base{}, errAbandoned)
	}
}

// errAbandoned ends what nobody waits for.
var errAbandoned = errors.New("nobody waits for this image any more")

// find looks for a complete base by its id, or gives provider.ErrNotFound.
func find(ctx context.Context, target Target, id string) (Base, error) {
	volumes, err := target.List(ctx, Prefix+id)
	if err != nil {
		return Base{}, err
	}
	data := map[string]Volume{}
	for _, v := range volumes {
		data[v.Name] = v
	}
	var found []Base
	for _, v := range volumes {
		if m, ok := parseMarker(v.Name); ok && m.base.id == id {
			if volume, ok := data[m.base.String()]; ok {
				found = append(found, m.found(target, volume, v))
			}
		}
	}
	if len(found) == 0 {
		return Base{}, provider.NotFoundf("%s has no image %s", target, id)
	}
	// Two Nomad nodes may have fetched at once; everybody takes the same one.
	first := found[0]
	for _, base := range found[1:] {
		if base.Volume.Name < first.Volume.Name {
			first = base
		}
	}
	return first, nil
}
