package lease

import (
	"crypto/rand"
	"encoding/base32"
	"net/netip"
	"strings"
	"time"
)

// held is a lease in the pool.
type held struct {
	alarm
	id       string
	entry    *entry
	exit     netip.Addr
	target   string
	client   string
	session  string
	mode     SessionMode
	selector Selector
	ttl      time.Duration
	granted  time.Duration
	renewals int
	// key and request are the idempotency key and a hash of what it was used
	// for.
	key     string
	request string
}

// ring ends the lease: it was not renewed in time.
func (h *held) ring(p *Pool) { p.end(h, Expired) }

var idEncoding = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

// newID is an id that can't be guessed: 130 random bits.
func newID() string {
	var raw [20]byte
	rand.Read(raw[:])
	var text [32]byte
	idEncoding.Encode(text[:], raw[:])
	return string(text[:26])
}

// ValidID says whether the text can be the id of a lease.
func ValidID(id string) bool {
	return len(id) == 26 && strings.Trim(id, "abcdefghijklmnopqrstuvwxyz234567") == ""
}

// grant gives the proxy to the request.
func (p *Pool) grant(e *entry, r *Request) *held {
	h := &held{
		alarm:    alarm{pos: unset},
		id:       newID(),
		entry:    e,
		exit:     e.proxy.ExitIP,
		target:   r.Target,
		client:   r.Client,
		session:  r.Session,
		mode:     r.Mode,
		selector: r.Selector,
		ttl:      r.TTL,
		granted:  p.now,
		key:      r.Key,
	}
	h.own = h
	if r.Key != "" {
		h.request = r.hash()
	}
	p.hold(h, p.now+r.TTL)
	return h
}

// hold makes the pool carry the lease.
func (p *Pool) hold(h *held, until time.Duration) {
	p.leases[h.id] = h
	if h.key != "" {
		p.keys[h.key] = append(p.keys[h.key], h)
	}
	p.alarms.set(&h.alarm, until)
	p.occupy(h.entry)
}

// occupy counts one more lease on the proxy.
func (p *Pool) occupy(e *entry) {
	p.seq++
	e.active++
	e.seq = p.seq
	e.group.active++
	e.group.seq = p.seq
	p.touched(e.group)
}

// vacate counts one less.
func (p *Pool) vacate(e *entry) {
	e.active--
	e.group.active--
	p.roomy = true
	p.touched(e.group)
	p.dropEntry(e)
}

// drop takes the lease out of the pool.
func (p *Pool) drop(h *held) {
	delete(p.leases, h.id)
	p.alarms.stop(&h.alarm)
	if h.key != "" {
		rest := p.keys[h.key]
		for i := range rest {
			if rest[i] == h {
				rest = append(rest[:i], rest[i+1:]...)
				break
			}
		}
		if len(rest) == 0 {
			delete(p.keys, h.key)
		} else {
			p.keys[h.key] = rest
		}
	}
	p.vacate(h.entry)
}

// end takes the lease out, stores that, and remembers why.
func (p *Pool) end(h *held, reason EndReason) {
	if p.listen != nil {
		l := p.snapshot(h)
		p.listen(Event{Kind: LeaseEnded, Lease: &l, Reason: reason})
	}
	if p.count != nil {
		p.count(reason, p.now-h.granted)
	}
	p.drop(h)
	p.remember(h.id, reason)
	if p.durable {
		p.changes = append(p.changes, Change{Key: leaseKey(h.id)})
	}
}

// remember keeps why a lease ended for as long as there is room.
func (p *Pool) remember(id string, reason EndReason) {
	if old := p.endRing[p.endNext]; old != "" {
		delete(p.ended, old)
	}
	p.endRing[p.endNext] = id
	p.endNext = (p.endNext + 1) % rememberEnded
	p.ended[id] = reason
}

// snapshot is the lease as the world sees it.
func (p *Pool) snapshot(h *held) Lease {
	return Lease{
		ID:        h.id,
		Proxy:     h.entry.proxy,
		ExitIP:    h.exit,
		Target:    h.target,
		Client:    h.client,
		Session:   h.session,
		Mode:      h.mode,
		Selector:  h.selector.String(),
		TTL:       h.ttl,
		GrantedAt: p.time(h.granted),
		ExpiresAt: p.time(h.at),
		Remaining: max(0, h.at-p.now),
		State:     h.entry.state,
		Renewals:  h.renewals,
	}
}

// find gives the lease, or says why it is not there.
func (p *Pool) find(id string) (*held, error) {
	if h := p.leases[id]; h != nil {
		return h, nil
	}
	if reason, ok := p.ended[id]; ok {
		return nil, &EndedError{ID: id, Reason: reason}
	}
	return nil, ErrUnknownLease
}
