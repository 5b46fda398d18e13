package consul

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/consul/api"
	"github.com/hashicorp/go-hclog"
	"golang.org/x/sync/errgroup"

	"github.com/egress-proxies/egress/lease"
)

// ElectorConfig makes an Elector.
type ElectorConfig struct {
	// Client talks to Consul. Required.
	Client *api.Client
	// Prefix is where everything is kept, with a slash at the end; "egress/lease/"
	// when empty. Services with one prefix are replicas of each other.
	Prefix string
	// ID tells replicas apart. Required.
	ID string
	// Address is the URL at which other replicas reach this one. Required.
	Address string
	// Lead makes this process decide; see lease.Service.Lead. Required.
	Lead func(lease.Store, []lease.Record) (resign func(), lost <-chan struct{})
	// Logger is silent when nil.
	Logger hclog.Logger
}

// Elector lets one of several replicas lead: the one whose session holds a lock
// in Consul.
type Elector struct {
	ElectorConfig
	// warned is that the last session had no check. It belongs to Run.
	warned bool

	// mu guards what follows.
	mu sync.Mutex
	// holder is the session that holds the lock; empty for none.
	holder string
	// leader is the address of the holder.
	leader string
	// index is the lock's when that was seen.
	index uint64
	// changed is closed, and made anew, whenever one of both changes.
	changed chan struct{}
	// present is when a leader was known last; zero when none ever was.
	present time.Time
}

// The times that bound a change of the leader. A leader that is killed, or
// paused, misses checkTTL; then Consul voids its session and the lock is free.
// Without the check, since the token may not register one, the session's own
// time counts, of which Consul waits up to the double.
const (
	checkTTL   = 4 * time.Second
	heartbeat  = time.Second
	sessionTTL = 10 * time.Second // the least that Consul accepts
	renewEvery = 3 * time.Second
	// checkPatience is how long one tries for a session with the check, while
	// there may be no leader; uncheckedFor is how long one waits for the lock
	// with a session that has none.
	checkPatience = 3 * time.Second
	uncheckedFor  = 30 * time.Second
	// lockDelay is how long Consul keeps a lock of a void session; the checks
	// in each transaction make more than the least useless.
	lockDelay = time.Millisecond
	// observeWait is how long Consul holds a query for the lock. It is short, so
	// that an answer that a broken network swallowed is missed soon: who does not
	// know of a new leader passes requests on to the old one.
	observeWait = 10 * time.Second
)

var errSessionLost = errors.New("the session in Consul is void")

// NewElector makes an elector; Follow and Run start it.
func NewElector(c ElectorConfig) *Elector {
	if c.Prefix == "" {
		c.Prefix = "egress/lease/"
	}
	if c.Logger == nil {
		c.Logger = hclog.NewNullLogger()
	}
	return &Elector{ElectorConfig: c, changed: make(chan struct{})}
}

// String names the elector in logs.
func (e *Elector) String() string { return "elector" }

// Leader is the URL of the leader, empty when there is none, and a channel that
// is closed when that changes.
func (e *Elector) Leader() (address string, changed <-chan struct{}) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.leader, e.changed
}

// Absent is how long there has been no leader; very long when none was seen yet.
func (e *Elector) Absent() time.Duration {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case e.holder != "":
		return 0
	case e.present.IsZero():
		return math.MaxInt64
	}
	return time.Since(e.present)
}

// know takes who holds the lock; an empty session is that nobody does. index is
// the lock's.
func (e *Elector) know(holder, leader string, index uint64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.index = index
	if holder == e.holder && leader == e.leader {
		return
	}
	if e.holder != "" {
		e.present = time.Now()
	}
	e.holder, e.leader = holder, leader
	close(e.changed)
	e.changed = make(chan struct{})
}

// Run takes part until ctx ends, which is not an error. A leader hands over
// before Run returns. Follow must run, and outlast it: requests that are under way
// then go to the next leader.
func (e *Elector) Run(ctx context.Context) error {
	defer e.deregister()
	for ctx.Err() == nil {
		if err := e.serveTerm(ctx); err != nil && ctx.Err() == nil {
			e.Logger.Warn("not in the election for now", "error", err)
			pause(ctx, time.Second)
		}
	}
	return nil
}

// serveTerm opens a session, waits for the lock, leads, and gives all of that up
// again.
func (e *Elector) serveTerm(ctx context.Context) error {
	term, cancel := context.WithCancelCause(ctx)
	var group errgroup.Group
	defer func() { _ = group.Wait() }()
	defer cancel(nil)
	refused := e.register(term)
	group.Go(func() error {
		e.heartbeats(term)
		return nil
	})
	session, checked, err := e.open(term, refused == nil)
	if err != nil {
		return errors.Join(err, refused)
	}
	if !checked && !e.warned {
		e.Logger.Warn("without a check that passes, a dead leader is noticed only after its session's time", "error", refused)
	}
	e.warned = !checked
	group.Go(func() error {
		e.keepAlive(term, session, cancel)
		return nil
	})
	err = e.lead(term, session, checked, cancel)
	cancel(nil)
	_ = group.Wait()
	e.close(session)
	return err
}

// lead waits for the lock and leads until the term ends. With a session without a
// check it waits for a while only, and then tries for a better one.
func (e *Elector) lead(term context.Context, session string, checked bool, cancel context.CancelCauseFunc) error {
	waiting, done := term, func() {}
	if !checked {
		waiting, done = context.WithTimeout(term, uncheckedFor)
	}
	locked, err := e.lock(waiting, session)
	better := waiting.Err() != nil && term.Err() == nil
	done()
	if better {
		return nil
	}
	if err != nil {
		return err
	}
	s := &store{client: e.Client, prefix: e.Prefix, session: session, logger: e.Logger, ended: term}
	loading, loaded := context.WithTimeout(term, 4*callTimeout)
	records, err := s.load(loading)
	loaded()
	if err != nil {
		return err
	}
	e.Logger.Info("leads", "records", len(records), "session", session)
	resign, lost := e.Lead(s, records)
	defer func() {
		resign()
		e.mu.Lock()
		own := e.holder == session
		e.mu.Unlock()
		if own { // Also when Consul can't be asked: nobody leads that we know of.
			e.know("", "", locked)
		}
	}()
	for {
		e.mu.Lock()
		deposed, changed := e.holder != session && e.holder != "" && e.index > locked, e.changed
		e.mu.Unlock()
		if deposed {
			return errDeposed
		}
		select {
		case <-term.Done():
			return context.Cause(term)
		case <-lost:
			cancel(errDeposed)
			return errDeposed
		case <-changed:
		}
	}
}

// CheckAddress refuses what other replicas could not use as a URL.
func CheckAddress(address string) error {
	u, err := url.Parse(address)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Port() == "" || u.Hostname() == "" || strings.Trim(u.Path, "/") != "" {
		return fmt.Errorf("address %q: want a URL such as http://10.0.0.1:7700", address)
	}
	return nil
}
