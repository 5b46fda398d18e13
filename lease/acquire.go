package lease

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"time"
)

// Acquire grants the leases that are asked for, or none. The error is a
// *Refusal, an *EndedError of a session, ErrKeyReused or ErrNotReady.
func (p *Pool) Acquire(r *Request) ([]Lease, error) {
	if !p.loaded {
		return nil, ErrNotReady
	}
	if r.Key != "" {
		if again := p.keys[r.Key]; again != nil {
			return p.repeat(again, r)
		}
	}
	var first [1]*held
	granted := first[:0]
	var moved EndReason
	var from string
	before, roomy := p.sessions[r.Session].copy(), p.roomy
	for len(granted) < r.Count {
		e, why, err := p.choose(r)
		if why != "" {
			moved, from = why, p.sessions[r.Session].proxy
		}
		if err != nil {
			if r.Partial && len(granted) > 0 {
				break
			}
			p.undo(granted, r.Session, before)
			p.roomy = roomy
			return nil, err
		}
		granted = append(granted, p.grant(e, r))
		if r.Session != "" {
			p.keepSession(granted[len(granted)-1])
		}
	}
	if r.Session != "" {
		p.storeSession(r.Session)
	}
	leases := make([]Lease, len(granted))
	for i, h := range granted {
		p.store(h)
		leases[i] = p.snapshot(h)
		leases[i].MovedFrom, leases[i].MovedReason = from, moved
		if p.listen != nil {
			p.listen(Event{Kind: LeaseGranted, Lease: &leases[i]})
		}
	}
	return leases, nil
}

// choose finds the proxy for the next lease of the request. why is set when a
// session has to leave its proxy.
func (p *Pool) choose(r *Request) (e *entry, why EndReason, err error) {
	if r.Session != "" {
		if s := p.sessions[r.Session]; s != nil {
			return p.chooseForSession(s, r)
		}
	}
	if e = p.pick(r.Selector, r.Target); e == nil {
		return nil, "", p.refuse(r)
	}
	return e, "", nil
}

// chooseForSession stays on the session's exit as long as it can be used.
func (p *Pool) chooseForSession(s *session, r *Request) (*entry, EndReason, error) {
	e, why := p.sessionEntry(s, r)
	switch {
	case why == "" && e.group.full():
		refusal := p.refuse(r)
		refusal.Session = s.name
		return nil, "", refusal
	case why == "":
		return e, "", nil
	case r.Mode == Hard:
		p.endSession(s.name)
		return nil, "", &EndedError{ID: s.name, Reason: why, OfSession: true}
	}
	if e = p.pick(r.Selector, r.Target); e == nil {
		return nil, "", p.refuse(r)
	}
	return e, why, nil
}

// undo takes back grants that were neither stored nor told, and what they did to
// the session.
func (p *Pool) undo(granted []*held, name string, before *session) {
	for _, h := range granted {
		p.drop(h)
	}
	if len(granted) == 0 || name == "" {
		return
	}
	if before == nil {
		p.forgetSession(name)
		return
	}
	s := p.sessions[name]
	s.proxy, s.group, s.mode = before.proxy, before.group, before.mode
	p.alarms.set(&s.alarm, before.at)
}

// repeat answers an acquire whose key has been seen.
func (p *Pool) repeat(again []*held, r *Request) ([]Lease, error) {
	if again[0].request != r.hash() {
		return nil, fmt.Errorf("%w: %q", ErrKeyReused, r.Key)
	}
	leases := make([]Lease, len(again))
	for i, h := range again {
		p.store(h) // so that a deposed leader can't answer
		leases[i] = p.snapshot(h)
	}
	return leases, nil
}

// hash tells requests under one idempotency key apart.
func (r *Request) hash() string {
	text := fmt.Sprintf("%q %q %d %q %q %d %t %q", r.Selector, r.Target, r.TTL, r.Session, r.Mode, r.Count, r.Partial, r.Client)
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:8])
}

// refuse counts why no proxy was given.
func (p *Pool) refuse(r *Request) *Refusal {
	v := p.view(r.Selector, "")
	c := Counts{
		Unhealthy:     v.counts[Unhealthy],
		NoCredentials: v.counts[NoCredentials],
		Draining:      v.counts[Draining],
		Frozen:        v.counts[Frozen],
		Cooling:       v.counts[Cooling],
		AtCapacity:    v.counts[AtCapacity],
		ExitFull:      v.counts[ExitFull],
		Free:          v.counts[Free],
	}
	for _, n := range v.counts {
		c.Matching += n
	}
	if r.Target != "" {
		for g := range p.blockers[r.Target] {
			for _, e := range g.members {
				if e.state == Free && v.has(e) {
					c.Free--
					c.Blocked++
				}
			}
		}
	}
	return &Refusal{Counts: c, RetryAfter: p.retryAfter(c)}
}

// The bounds of Retry-After: below a second a client only burns requests, and
// nobody should sleep through a pool that grew meanwhile.
const (
	minRetry = time.Second
	maxRetry = 30 * time.Second
)

// retryAfter is when the next thing in the pool ends.
func (p *Pool) retryAfter(c Counts) time.Duration {
	at, ok := p.alarms.next()
	if !ok || c.Matching == 0 {
		return maxRetry
	}
	return min(max(at-p.now, minRetry), maxRetry)
}
