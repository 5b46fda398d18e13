package lease

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"
)

// Load replaces everything but the catalog by the records, as a new leader
// does. Records that can't be read are skipped and told; they are left in the
// store for a person to look at.
func (p *Pool) Load(records []Record) (skipped []error) {
	proxies := make([]*Proxy, 0, len(p.entries))
	for _, e := range p.entries {
		if !e.gone {
			proxies = append(proxies, e.proxy)
		}
	}
	listen := p.listen
	p.listen = nil
	p.forget()
	p.entries, p.groups, p.views = map[string]*entry{}, map[string]*group{}, map[viewKey]*view{}
	p.slots, p.freeSlots, p.entryCount, p.freeEntries, p.viewList = nil, nil, 0, nil, nil
	loaded := p.loaded
	p.SetProxies(proxies)
	p.loaded = loaded
	type stored struct {
		id string
		leaseRecord
	}
	var leases []stored
	for _, record := range records {
		kind, name := kindOf(record.Key)
		var err error
		switch kind {
		case kindLease:
			l := stored{id: name}
			if err = json.Unmarshal(record.Value, &l.leaseRecord); err == nil {
				leases = append(leases, l)
			}
		case kindSession:
			err = p.loadSession(record.Value)
		case kindCooldown:
			err = p.loadCooldown(record.Value)
		case kindMark:
			err = p.loadMark(record.Value)
		default:
			err = fmt.Errorf("unknown kind")
		}
		if err != nil {
			skipped = append(skipped, fmt.Errorf("record %q: %w", record.Key, err))
		}
	}
	slices.SortFunc(leases, func(a, b stored) int { return int(a.Granted - b.Granted) })
	for _, l := range leases {
		if err := p.loadLease(l.id, l.leaseRecord); err != nil {
			skipped = append(skipped, fmt.Errorf("record %q: %w", leaseKey(l.id), err))
		}
	}
	p.listen = listen
	p.roomy = true
	if p.loaded {
		for _, e := range p.entries {
			p.exitChanged(e)
		}
	}
	return skipped
}

// moment is the stored time of day as a moment from now on, at most limit away:
// a clock that was wrong must not keep a proxy for ever.
func (p *Pool) moment(ms int64, limit time.Duration) time.Duration {
	left := time.UnixMilli(ms).Sub(p.wall)
	return p.now + max(0, min(left, limit))
}

func (p *Pool) loadLease(id string, r leaseRecord) error {
	selector, err := ParseSelector(r.Selector)
	if err != nil {
		return err
	}
	ttl := time.Duration(r.TTL) * time.Millisecond
	if !ValidID(id) || r.Proxy == "" || ttl <= 0 {
		return fmt.Errorf("want an id, a proxy and a ttl")
	}
	h := &held{
		alarm: alarm{pos: unset}, id: id, exit: r.Exit, target: r.Target, client: r.Client,
		session: r.Session, mode: r.Mode, selector: selector, ttl: ttl, renewals: r.Renewals,
		key: r.Key, request: r.Request,
	}
	h.own = h
	h.granted = p.now - max(0, p.wall.Sub(time.UnixMilli(r.Granted)))
	h.entry = p.entries[r.Proxy]
	if h.entry == nil {
		h.entry = p.add(&Proxy{ID: r.Proxy, ExitIP: r.Exit}, true)
	}
	p.hold(h, p.moment(r.Expires, ttl)+p.rules.Skew)
	return nil
}

func (p *Pool) loadSession(value []byte) error {
	var r sessionRecord
	if err := json.Unmarshal(value, &r); err != nil {
		return err
	}
	if r.Name == "" || r.Proxy == "" {
		return fmt.Errorf("want a name and a proxy")
	}
	p.forgetSession(r.Name)
	s := &session{name: r.Name, mode: r.Mode, proxy: r.Proxy, group: r.Group, alarm: alarm{pos: unset}}
	s.own = s
	p.sessions[r.Name] = s
	p.alarms.set(&s.alarm, p.moment(r.Expires, p.rules.MaxTTL+p.rules.SessionIdle))
	return nil
}

func (p *Pool) loadCooldown(value []byte) error {
	var r cooldownRecord
	if err := json.Unmarshal(value, &r); err != nil {
		return err
	}
	if len(r.Group) < 4 || r.Strikes < 1 || r.Length <= 0 {
		return fmt.Errorf("want an exit, a length and at least one strike")
	}
	g := p.group(r.Group)
	if g.failed != nil && r.Target == "" || g.blocked[r.Target] != nil {
		return fmt.Errorf("the exit has this cooldown twice")
	}
	c := p.newCooldown(g, r.Target)
	c.strikes = min(r.Strikes, maxStrikes)
	c.length = min(time.Duration(r.Length)*time.Millisecond, max(p.rules.Blocked.Cap, p.rules.Failed.Cap))
	p.alarms.set(&c.alarm, p.moment(r.Until, c.length))
	if r.Cooling {
		p.setCooling(c, true)
	}
	return nil
}

// maxStrikes keeps a stored record from costing time: 64 doublings exceed every
// cap.
const maxStrikes = 64

func (p *Pool) loadMark(value []byte) error {
	var r markRecord
	if err := json.Unmarshal(value, &r); err != nil {
		return err
	}
	if r.Proxy == "" || r.Mark != MarkFreeze && r.Mark != MarkDrain {
		return fmt.Errorf("want a proxy and one of frozen, draining")
	}
	p.marks[r.Proxy] = MarkInfo{Mark: r.Mark, By: r.By, Reason: r.Reason, At: r.At}
	if e := p.entries[r.Proxy]; e != nil {
		p.leave(e)
		e.mark = r.Mark
		p.enter(e)
	}
	return nil
}
