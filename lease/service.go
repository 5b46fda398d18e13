package lease

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
)

// Config makes a Service.
type Config struct {
	// Rules are the numbers it decides by; zero fields take the defaults.
	Rules Rules
	// Clock is SystemClock when nil.
	Clock Clock
	// Logger is silent when nil.
	Logger hclog.Logger
	// Observer is told what happens, for metrics; may be nil.
	Observer Observer
}

// Observer is told what happens. Its methods must not block.
type Observer interface {
	// Acquired tells the outcome of an acquire and how long it took, waiting
	// and storing included.
	Acquired(outcome Outcome, took time.Duration)
	// Waited tells how long an acquire queued.
	Waited(took time.Duration)
	// Ended tells how a lease ended and how long it was held.
	Ended(reason EndReason, held time.Duration)
	// Reported tells what a client reported.
	Reported(result Result)
	// Committed tells that changes were stored.
	Committed(changes int, took time.Duration, err error)
}

// Service is a Pool that many can use at once: it has a clock, a queue for
// acquires that wait and, while it leads, a store. Run must run.
type Service struct {
	clock    Clock
	logger   hclog.Logger
	observer Observer

	// mu guards everything below. It is never held during I/O.
	mu    sync.Mutex
	pool  *Pool
	queue queue
	subs  map[*subscription]struct{}
	// term is the current leadership; nil while another process leads.
	term *term
	// places are where proxies are launched.
	places places
	// events were told by the pool and are not yet published.
	events []Event
	// wakeAt is when the timer of Run fires.
	wakeAt time.Time
	// version is the pool's, for readers without the lock.
	version atomic.Uint64
	// wake makes Run look at its timer again.
	wake chan struct{}
}

// NewService makes a service that leads nothing yet: see Lead.
func NewService(c Config) *Service {
	if c.Clock == nil {
		c.Clock = SystemClock{}
	}
	if c.Logger == nil {
		c.Logger = hclog.NewNullLogger()
	}
	if c.Observer == nil {
		c.Observer = noObserver{}
	}
	s := &Service{
		clock: c.Clock, logger: c.Logger, observer: c.Observer,
		pool: NewPool(c.Rules, c.Clock.Now()),
		subs: map[*subscription]struct{}{},
		wake: make(chan struct{}, 1),
	}
	s.queue.init()
	s.pool.count = c.Observer.Ended
	return s
}

// Rules are the rules in force.
func (s *Service) Rules() Rules { return s.pool.rules }

// String names the service in logs.
func (s *Service) String() string { return "lease service" }

// Run lets leases expire until ctx ends, which is not an error.
func (s *Service) Run(ctx context.Context) error {
	for {
		s.mu.Lock()
		next, ok := s.advance()
		if !ok {
			next = time.Hour
		}
		s.wakeAt = s.clock.Now().Add(next)
		timer := s.clock.Timer(next)
		s.mu.Unlock()
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-s.wake:
		case <-timer.C():
		}
		timer.Stop()
	}
}

// advance moves the pool's time on and serves who waits for what that freed. It
// returns how long it is until the next change. mu is held.
func (s *Service) advance() (next time.Duration, ok bool) {
	s.pool.Advance(s.clock.Now())
	s.serveWaiting()
	s.flush()
	return s.pool.untilNext()
}

// do lets the pool decide something and waits until that is stored; when there
// is nothing to store, until it is sure that it was this process's to decide.
func (s *Service) do(ctx context.Context, decide func(*Pool) error) error {
	return s.ask(ctx, decide, (*Service).confirm)
}

// view reads the pool. Nothing is told that is not stored; a leader that was
// deposed may tell what was, until it notices.
func (s *Service) view(ctx context.Context, read func(*Pool) error) error {
	return s.ask(ctx, read, func(_ *Service, stored *batch) *batch { return stored })
}

func (s *Service) ask(ctx context.Context, f func(*Pool) error, until func(*Service, *batch) *batch) error {
	s.mu.Lock()
	if s.term == nil {
		s.mu.Unlock()
		return ErrNoLeader
	}
	s.pool.Advance(s.clock.Now())
	err := f(s.pool)
	s.serveWaiting()
	b := until(s, s.flush())
	s.rewind()
	s.mu.Unlock()
	if werr := b.wait(ctx); werr != nil {
		return werr
	}
	return err
}

// rewind wakes Run when something is due before its timer fires. mu is held.
func (s *Service) rewind() {
	next, ok := s.pool.untilNext()
	if !ok || !s.clock.Now().Add(next).Before(s.wakeAt) {
		return
	}
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// Renew makes the lease last longer; see Pool.Renew.
func (s *Service) Renew(ctx context.Context, id string, ttl time.Duration) (l Lease, err error) {
	if ttl != 0 {
		if ttl, err = s.pool.rules.CheckTTL(ttl); err != nil {
			return Lease{}, err
		}
	}
	err = s.do(ctx, func(p *Pool) error {
		l, err = p.Renew(id, ttl)
		return err
	})
	return l, err
}

// Report takes what a client says about a lease; see Pool.Report. The target is
// a URL or a host. The cooldown is nil when there is none.
func (s *Service) Report(ctx context.Context, id string, result Result, target string) (c *Cooldown, err error) {
	if result != OK && result != Blocked && result != Failed {
		return nil, &FieldError{"result", string(result), -1, `want "ok", "blocked" or "failed"`}
	}
	if target, err = NormalizeTarget(target, s.pool.rules.Scope); err != nil {
		return nil, err
	}
	err = s.do(ctx, func(p *Pool) error {
		c, err = p.Report(id, result, target)
		return err
	})
	if err == nil {
		s.observer.Reported(result)
	}
	return c, err
}

// Release ends the lease; one that is unknown or has ended is no error.
func (s *Service) Release(ctx context.Context, id string) error {
	return s.do(ctx, func(p *Pool) error {
		p.Release(id)
		return nil
	})
}

// Mark freezes, drains or unfreezes a proxy; see Pool.SetMark.
func (s *Service) Mark(ctx context.Context, id string, info MarkInfo) (status ProxyStatus, err error) {
	if err := CheckText("reason", info.Reason, maxReason); err != nil {
		return ProxyStatus{}, err
	}
	info.At = s.clock.Now().UTC().Truncate(time.Second)
	err = s.do(ctx, func(p *Pool) error {
		if err := p.SetMark(id, info); err != nil {
			return fmt.Errorf("%w: %q", err, id)
		}
		status, err = p.Proxy(id)
		return err
	})
	return status, err
}

// maxReason bounds what an operator writes about a mark.
const maxReason = 256

// outcomeOf is the word for how an acquire ended.
func outcomeOf(err error) Outcome {
	switch {
	case err == nil:
		return Granted
	case errors.Is(err, ErrNoCapacity), errors.Is(err, ErrNoMatch):
		return Refused
	case errors.Is(err, context.Canceled):
		return Left
	default:
		return Broken
	}
}

// Outcome is how an acquire ended.
type Outcome string

// The outcomes.
const (
	// Granted: leases were given.
	Granted Outcome = "granted"
	// Refused: there was no capacity, also after the wait.
	Refused Outcome = "refused"
	// Left: the client went away while it waited.
	Left Outcome = "left"
	// Broken: the request was wrong, or the service could not decide.
	Broken Outcome = "error"
)

type noObserver struct{}

func (noObserver) Acquired(Outcome, time.Duration)     {}
func (noObserver) Waited(time.Duration)                {}
func (noObserver) Ended(EndReason, time.Duration)      {}
func (noObserver) Reported(Result)                     {}
func (noObserver) Committed(int, time.Duration, error) {}
