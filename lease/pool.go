package lease

import (
	"time"
)

// Pool is the proxies, the leases on them and what clients reported. It is not
// safe for concurrent use; Service adds that.
//
// Methods that change something append to the changes which TakeChanges hands
// out for storing. Before each method the caller calls Advance.
type Pool struct {
	rules Rules
	// epoch is the zero of all moments in the pool.
	epoch time.Time
	// now is the moment of the last Advance, and wall the time of day then.
	now  time.Duration
	wall time.Time
	// loaded is true once the catalog has been seen.
	loaded bool
	// durable is false when nobody takes the changes.
	durable bool

	entries map[string]*entry
	groups  map[string]*group
	// slots and free are the indexes of groups; freeEntries those of entries.
	slots       []*group
	freeSlots   []int
	entryCount  int
	freeEntries []int
	locked      func(auth string) bool

	leases   map[string]*held
	keys     map[string][]*held
	sessions map[string]*session
	marks    map[string]MarkInfo
	// blockers are, by target, the groups that it blocks now.
	blockers map[string]map[*group]struct{}
	alarms   alarms
	// seq counts the grants, for "least recently leased".
	seq uint64

	views    map[viewKey]*view
	viewList []*view
	lookups  uint64

	ended   map[string]EndReason
	endRing [rememberEnded]string
	endNext int

	changes []Change
	// version grows with every change of what the lists show.
	version uint64
	// roomy is set when something was freed that a waiting acquire may want.
	roomy bool
	// listen gets every event; nil when nobody listens.
	listen func(Event)
	// count is told each end of a lease, for metrics; may be nil.
	count func(reason EndReason, held time.Duration)
}

// rememberEnded is how many ended leases are remembered, so that a late renewal
// is told why; 4096 ids are some 400 KB.
const rememberEnded = 4096

// NewPool makes an empty pool that counts time from now.
func NewPool(rules Rules, now time.Time) *Pool {
	p := &Pool{
		rules:   rules.withDefaults(),
		epoch:   now,
		wall:    now.Round(0),
		entries: map[string]*entry{},
		groups:  map[string]*group{},
		views:   map[viewKey]*view{},
		locked:  func(auth string) bool { return auth != "" },
	}
	p.forget()
	return p
}

// forget drops everything but the proxies.
func (p *Pool) forget() {
	p.leases = map[string]*held{}
	p.keys = map[string][]*held{}
	p.sessions = map[string]*session{}
	p.marks = map[string]MarkInfo{}
	p.blockers = map[string]map[*group]struct{}{}
	p.ended = map[string]EndReason{}
	p.alarms = alarms{}
	p.changes = nil
	p.endRing = [rememberEnded]string{}
}

// Loaded is true once the pool has seen the catalog.
func (p *Pool) Loaded() bool { return p.loaded }

// Rules are the rules in force.
func (p *Pool) Rules() Rules { return p.rules }

// Advance moves time on: leases, cooldowns and sessions that are due end. It
// TakeChanges has what that changed.
func (p *Pool) Advance(now time.Time) {
	p.now = max(p.now, now.Sub(p.epoch))
	p.wall = now.Round(0)
	for a := p.alarms.due(p.now); a != nil; a = p.alarms.due(p.now) {
		a.own.ring(p)
	}
}

// time is the moment as a time of day, by the clock as it is set now.
func (p *Pool) time(at time.Duration) time.Time { return p.wall.Add(at - p.now) }

// SetProxies replaces the catalog. A proxy that is not in the list, and carries
// leases, stays as Gone until they end.
func (p *Pool) SetProxies(list []*Proxy) {
	p.loaded = true
	seen := make(map[string]struct{}, len(list))
	for _, proxy := range list {
		if _, twice := seen[proxy.ID]; twice {
			continue
		}
		seen[proxy.ID] = struct{}{}
		e := p.entries[proxy.ID]
		switch {
		case e == nil:
			p.add(proxy, false)
		case e.gone || !e.proxy.equal(proxy):
			p.replace(e, proxy)
		}
	}
	if len(seen) == len(p.entries) {
		return
	}
	for id, e := range p.entries {
		if _, ok := seen[id]; !ok && !e.gone {
			p.lose(e)
		}
	}
}

// SetCredentials tells which credentials are known, by name.
func (p *Pool) SetCredentials(known func(auth string) bool) {
	p.locked = func(auth string) bool { return auth != "" && !known(auth) }
	for _, e := range p.entries {
		if locked := p.locked(e.proxy.Auth); locked != e.locked {
			p.leave(e)
			e.locked = locked
			p.enter(e)
			p.roomy = true
			p.tellProxy(ProxyChanged, e)
		}
	}
}

// add makes an entry; gone ones only carry leases of proxies not seen yet.
func (p *Pool) add(proxy *Proxy, gone bool) *entry {
	e := &entry{proxy: proxy, gone: gone, locked: p.locked(proxy.Auth), mark: p.marks[proxy.ID].Mark}
	if n := len(p.freeEntries); n > 0 {
		e.index = p.freeEntries[n-1]
		p.freeEntries = p.freeEntries[:n-1]
	} else {
		e.index = p.entryCount
		p.entryCount++
	}
	p.entries[proxy.ID] = e
	p.join(e)
	p.enter(e)
	if !gone {
		p.roomy = true
		p.tellProxy(ProxyAdded, e)
	}
	return e
}

// join puts the entry into the group of its exit, making it when needed.
func (p *Pool) join(e *entry) {
	g := p.group(e.proxy.groupKey())
	g.members = append(g.members, e)
	g.active += e.active
	g.seq = max(g.seq, e.seq)
	e.group = g
	g.countLimit()
	p.touched(g)
}

// group finds or makes the group of the key.
func (p *Pool) group(key string) *group {
	if g := p.groups[key]; g != nil {
		return g
	}
	g := &group{key: key}
	g.members = g.alone[:0]
	if n := len(p.freeSlots); n > 0 {
		g.index = p.freeSlots[n-1]
		p.freeSlots = p.freeSlots[:n-1]
		p.slots[g.index] = g
	} else {
		g.index = len(p.slots)
		p.slots = append(p.slots, g)
	}
	p.groups[key] = g
	return g
}

// part takes the entry out of its group.
func (p *Pool) part(e *entry) {
	g := e.group
	for i, member := range g.members {
		if member == e {
			last := len(g.members) - 1
			g.members[i] = g.members[last]
			g.members[last] = nil
			g.members = g.members[:last]
			break
		}
	}
	g.active -= e.active
	g.countLimit()
	p.touched(g)
	p.dropGroup(g)
}

// dropGroup forgets a group that has neither members nor cooldowns. It may have
// been forgotten already.
func (p *Pool) dropGroup(g *group) {
	if p.groups[g.key] != g || len(g.members) > 0 || g.failed != nil || len(g.blocked) > 0 {
		return
	}
	delete(p.groups, g.key)
	p.slots[g.index] = nil
	p.freeSlots = append(p.freeSlots, g.index)
}
