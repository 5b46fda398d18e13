// Package consul connects the lease service to Consul: the catalog says which
// proxies there are, the key-value store keeps leases and elects the leader.
package consul

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/url"
	"sync"
	"time"

	"github.com/hashicorp/consul/api"
	"github.com/hashicorp/go-hclog"
	"golang.org/x/sync/errgroup"

	"github.com/egress-proxies/egress/lease"
)

// WatcherConfig makes a Watcher.
type WatcherConfig struct {
	// Client talks to Consul. Required.
	Client *api.Client
	// Services are the names to watch. Required.
	Services []string
	// Update gets the whole pool whenever it changed, from one goroutine at a
	// time. Required.
	Update func([]*lease.Proxy)
	// Facts are what is known about an exit address beyond the catalog; they
	// win over the labels of a proxy. May be nil.
	Facts *Facts
	// Logger is silent when nil.
	Logger hclog.Logger
}

// Watcher follows the catalog with blocking queries. While Consul does not
// answer, the last known pool stays.
type Watcher struct {
	WatcherConfig

	// mu guards what follows.
	mu sync.Mutex
	// proxies are by service; a service that never answered is absent.
	proxies map[string][]*lease.Proxy
	// contact is when each service answered last.
	contact map[string]time.Time
	// failure is what the last query of a service failed with.
	failure map[string]error
	// updating serialises Update.
	updating sync.Mutex
}

const (
	// waitTime is how long Consul holds a query without a change. It adds up
	// to a sixteenth; the timeout is a little more, so that a Consul that
	// hangs, or a network that swallowed the answer, is noticed in half a minute.
	waitTime     = 20 * time.Second
	queryTimeout = waitTime + waitTime/16 + 10*time.Second
	minBackoff   = 250 * time.Millisecond
	maxBackoff   = 10 * time.Second
	// minPause gathers changes that come in a burst; idleShare keeps a large
	// service that flaps from using more than a fifth of a processor.
	minPause  = 100 * time.Millisecond
	maxPause  = 2 * time.Second
	idleShare = 4
)

// NewWatcher makes a watcher; Run starts it.
func NewWatcher(c WatcherConfig) *Watcher {
	if c.Logger == nil {
		c.Logger = hclog.NewNullLogger()
	}
	return &Watcher{
		WatcherConfig: c,
		proxies:       map[string][]*lease.Proxy{},
		contact:       map[string]time.Time{},
		failure:       map[string]error{},
	}
}

// String names the watcher in logs.
func (w *Watcher) String() string { return "catalog watcher" }

// Run watches until ctx ends, which is not an error.
func (w *Watcher) Run(ctx context.Context) error {
	var group errgroup.Group
	for _, service := range w.Services {
		group.Go(func() error {
			w.watch(ctx, service)
			return nil
		})
	}
	if w.Facts != nil {
		group.Go(func() error {
			w.Facts.run(ctx, w.publish)
			return nil
		})
	}
	return group.Wait()
}

// watch follows one service.
func (w *Watcher) watch(ctx context.Context, service string) {
	var index uint64
	backoff := minBackoff
	for ctx.Err() == nil {
		started := time.Now()
		entries, next, err := query(ctx, w.Client, service, index)
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			w.failed(service, err)
			index = 0 // after an outage the index may mean something else
			pause(ctx, backoff/2+rand.N(backoff/2))
			backoff = min(2*backoff, maxBackoff)
			continue
		}
		backoff = minBackoff
		answered := time.Now()
		changed := next != index
		index = nextIndex(index, next)
		w.answered(service, entries, changed)
		if changed {
			// The wait of a blocking query is no work; decoding and applying is.
			work := time.Since(answered) + decodeShare(len(entries))
			pause(ctx, min(max(idleShare*work, minPause), maxPause)-min(time.Since(started), minPause))
		}
	}
}

// decodeShare estimates the time to read an answer: about 10 µs an instance.
func decodeShare(instances int) time.Duration {
	return time.Duration(instances) * 10 * time.Microsecond
}

// nextIndex follows the rules for blocking queries: an index that went back is
// void, and the next query must not block on it.
func nextIndex(last, got uint64) uint64 {
	if got < last {
		return 0
	}
	return max(got, 1)
}

// query asks once. index 0 returns at once.
func query(ctx context.Context, client *api.Client, service string, index uint64) ([]entry, uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	var entries []entry
	options := (&api.QueryOptions{WaitIndex: index, WaitTime: waitTime}).WithContext(ctx)
	meta, err := client.Raw().Query("/v1/health/service/"+url.PathEscape(service), &entries, options)
	if err != nil {
		return nil, 0, err
	}
	return entries, meta.LastIndex, nil
}

// answered takes what a service is now.
func (w *Watcher) answered(service string, entries []entry, changed bool) {
	w.mu.Lock()
	if w.failure[service] != nil {
		w.Logger.Info("Consul answers again", "service", service)
		delete(w.failure, service)
	}
	_, known := w.proxies[service]
	w.contact[service] = time.Now()
	if changed || !known {
		list := make([]*lease.Proxy, 0, len(entries))
		for i := range entries {
			p, err := entries[i].proxy()
			if err != nil {
				w.Logger.Warn("skipped a catalog entry", "service", service, "id", entries[i].Service.ID, "error", err)
				continue
			}
			list = append(list, p)
		}
		w.proxies[service] = list
	}
	w.mu.Unlock()
	if changed || !known {
		w.publish()
	}
}

// failed notes that a service could not be asked. It logs the first failure of
// an outage.
func (w *Watcher) failed(service string, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.failure[service] == nil {
		w.Logger.Warn("Consul does not answer; the last known pool stays", "service", service, "error", err)
	}
	w.failure[service] = err
}

// publish hands the pool on, once every service is known.
func (w *Watcher) publish() {
	w.updating.Lock()
	defer w.updating.Unlock()
	w.mu.Lock()
	var all []*lease.Proxy
	complete := len(w.proxies) == len(w.Services)
	for _, service := range w.Services {
		all = append(all, w.proxies[service]...)
	}
	w.mu.Unlock()
	if complete {
		w.Update(w.Facts.apply(all))
	}
}

// Problem says why the pool is unknown or old; nil when every service answered
// its last query.
func (w *Watcher) Problem() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, service := range w.Services {
		if err := w.failure[service]; err != nil {
			return fmt.Errorf("service %q: %w", service, err)
		}
		if _, known := w.proxies[service]; !known {
			return fmt.Errorf("service %q: %w", service, errUnasked)
		}
	}
	return nil
}

var errUnasked = errors.New("no answer from Consul yet")

// Age is how long ago the service that waits longest was known to be current.
// A query that is being held counts as current.
func (w *Watcher) Age() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	var age time.Duration
	for _, service := range w.Services {
		if w.failure[service] != nil || w.contact[service].IsZero() {
			age = max(age, time.Since(w.contact[service]))
		}
	}
	return age
}

// pause waits for d or the end of ctx.
func pause(ctx context.Context, d time.Duration) {
	if d <= 0 {
		return
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}
