package lease

import (
	"context"
	"fmt"
	"time"
)

// untilNext is how long it is until something in the pool changes by itself.
func (p *Pool) untilNext() (next time.Duration, ok bool) {
	at, ok := p.alarms.next()
	return at - p.now, ok
}

// Proxy is one proxy. The error is ErrUnknownProxy.
func (p *Pool) Proxy(id string) (ProxyStatus, error) {
	e := p.entries[id]
	if e == nil {
		return ProxyStatus{}, fmt.Errorf("%w: %q", ErrUnknownProxy, id)
	}
	return p.status(e), nil
}

// SetProxies takes a new catalog. It may be called whether the service leads or
// not.
func (s *Service) SetProxies(list []*Proxy) {
	s.update(func(p *Pool) { p.SetProxies(list) })
}

// SetCredentials takes the names of the credentials that are known.
func (s *Service) SetCredentials(known func(auth string) bool) {
	s.update(func(p *Pool) { p.SetCredentials(known) })
}

// update changes the pool without waiting for what that changes to be stored.
func (s *Service) update(change func(*Pool)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pool.Advance(s.clock.Now())
	change(s.pool)
	s.serveWaiting()
	s.flush()
	s.rewind()
}

// Version grows with every change of what the lists show.
func (s *Service) Version() uint64 { return s.version.Load() }

// Ready is true once the pool is known.
func (s *Service) Ready() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.pool.loaded
}

// Leases are all leases, by id.
func (s *Service) Leases(ctx context.Context) (list []Lease, err error) {
	err = s.view(ctx, func(p *Pool) error {
		list = p.Leases()
		return nil
	})
	return list, err
}

// Lease is one lease; see Pool.Lease.
func (s *Service) Lease(ctx context.Context, id string) (l Lease, err error) {
	err = s.view(ctx, func(p *Pool) error {
		l, err = p.Lease(id)
		return err
	})
	return l, err
}

// Proxies are the proxies that the selector chooses, by id. The error is
// ErrNotReady as long as the pool is unknown.
func (s *Service) Proxies(ctx context.Context, selector Selector) (list []ProxyStatus, err error) {
	err = s.view(ctx, func(p *Pool) error {
		if !p.loaded {
			return ErrNotReady
		}
		list = p.Proxies(selector)
		return nil
	})
	return list, err
}

// Cooldowns are the exits that cool now, by exit and target.
func (s *Service) Cooldowns(ctx context.Context) (list []Cooldown, err error) {
	err = s.view(ctx, func(p *Pool) error {
		list = p.Cooldowns()
		return nil
	})
	return list, err
}

// Stats counts the pool. Only the leader knows about leases.
func (s *Service) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.term != nil {
		s.pool.Advance(s.clock.Now())
	}
	return s.pool.Stats()
}
