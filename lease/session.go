package lease

// session remembers which exit a client's named session uses, beyond the end of
// its leases, so that the next one leaves by the same address.
type session struct {
	alarm
	name string
	mode SessionMode
	// proxy is the id of the proxy that was leased last.
	proxy string
	// group is the key of the exit.
	group string
}

// ring forgets the session: it was idle for too long.
func (s *session) ring(p *Pool) { p.endSession(s.name) }

// copy is a copy that is not in the pool; nil stays nil.
func (s *session) copy() *session {
	if s == nil {
		return nil
	}
	c := *s
	return &c
}

// keepSession notes the exit that the session's lease uses, and keeps the
// session until it has been idle for long enough after that lease.
func (p *Pool) keepSession(h *held) {
	s := p.sessions[h.session]
	if s == nil {
		s = &session{name: h.session, alarm: alarm{pos: unset}}
		s.own = s
		p.sessions[h.session] = s
	}
	s.mode, s.proxy, s.group = h.mode, h.entry.proxy.ID, h.entry.group.key
	until := h.at + p.rules.SessionIdle
	if s.pos == unset || until > s.at {
		p.alarms.set(&s.alarm, until)
	}
}

// forgetSession drops it from memory.
func (p *Pool) forgetSession(name string) {
	if s := p.sessions[name]; s != nil {
		p.alarms.stop(&s.alarm)
		delete(p.sessions, name)
	}
}

// endSession drops it from memory and from the store.
func (p *Pool) endSession(name string) {
	p.forgetSession(name)
	if p.durable {
		p.changes = append(p.changes, Change{Key: sessionKey(name)})
	}
}

// sessionEntry is the proxy that the session would use now; why says that it
// has none.
func (p *Pool) sessionEntry(s *session, r *Request) (e *entry, why EndReason) {
	e = p.entries[s.proxy]
	if e != nil && e.group.key != s.group && s.group == "id/"+s.proxy {
		s.group = e.group.key // the exit was unknown so far
	}
	if e != nil && e.group.key == s.group {
		if why = p.unfit(e, r.Selector, r.Target); why == "" {
			return e, ""
		}
	}
	for _, other := range p.members(s.group) {
		if p.unfit(other, r.Selector, r.Target) == "" {
			return other, ""
		}
	}
	switch {
	case e == nil:
		return nil, ProxyGone
	case why == "":
		return nil, ExitChanged
	default:
		return nil, why
	}
}

// members are the proxies of the group.
func (p *Pool) members(key string) []*entry {
	if g := p.groups[key]; g != nil {
		return g.members
	}
	return nil
}

// unfit says why the proxy would not do for a new lease; capacity apart.
func (p *Pool) unfit(e *entry, s Selector, target string) EndReason {
	switch {
	case e.gone:
		return ProxyGone
	case !e.proxy.Healthy, e.locked:
		return ProxyUnhealthy
	case e.mark == MarkDrain:
		return ProxyDraining
	case e.mark == MarkFreeze:
		return ProxyFrozen
	case e.group.failed != nil && e.group.failed.cooling, e.group.blockedBy(target):
		return ProxyCooling
	case !s.Matches(e.proxy):
		return ProxyUnmatched
	}
	return ""
}
