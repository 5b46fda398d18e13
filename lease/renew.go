package lease

import "time"

// Renew makes the lease last for ttl more from now; zero is the ttl that it was
// granted with. What happens when the proxy can't go on is the table "Renewal"
// in docs/lease-api.md. The error is ErrUnknownLease, an *EndedError, or a
// *Refusal when a soft session finds no other proxy.
func (p *Pool) Renew(id string, ttl time.Duration) (Lease, error) {
	h, err := p.find(id)
	if err != nil {
		return Lease{}, err
	}
	if ttl == 0 {
		ttl = h.ttl
	}
	from := h.entry.proxy.ID
	why, err := p.settle(h)
	if err != nil {
		return Lease{}, err
	}
	h.ttl = ttl
	h.renewals++
	p.version++
	p.alarms.set(&h.alarm, p.now+ttl)
	if h.session != "" {
		p.keepSession(h)
		p.storeSession(h.session)
	}
	p.store(h)
	l := p.snapshot(h)
	if why != "" {
		l.MovedFrom, l.MovedReason = from, why
	}
	if p.listen != nil {
		kind := LeaseRenewed
		if why != "" {
			kind = LeaseMoved
		}
		told := l
		p.listen(Event{Kind: kind, Lease: &told, Reason: why})
	}
	return l, nil
}

// settle decides whether the lease can go on with its proxy. It moves it, ends
// it or leaves it, and returns why it moved.
func (p *Pool) settle(h *held) (moved EndReason, err error) {
	why := p.unfit(h.entry, h.selector, h.target)
	switch {
	case why == "" || why == ProxyFrozen:
		return p.settleExit(h), nil
	case h.session != "" && h.mode == Soft:
		err := p.move(h)
		if err != nil && (why == ProxyUnhealthy || why == ProxyCooling) {
			// Nothing better is free: the client keeps what it has.
			return "", nil
		}
		if err != nil {
			return "", err
		}
		return why, nil
	case h.session == "" && (why == ProxyUnhealthy || why == ProxyCooling):
		return p.settleExit(h), nil
	}
	if h.session != "" {
		p.endSession(h.session)
	}
	p.end(h, why)
	return "", &EndedError{ID: h.id, Reason: why}
}

// settleExit notes the exit address that the lease uses now. It tells a change
// of a known address; the leases of hard sessions have ended by then.
func (p *Pool) settleExit(h *held) EndReason {
	now := h.entry.proxy.ExitIP
	changed := h.exit.IsValid() && h.exit != now
	h.exit = now
	if changed {
		return ExitChanged
	}
	return ""
}

// move gives the lease another proxy.
func (p *Pool) move(h *held) error {
	r := &Request{Selector: h.selector, Target: h.target}
	to := p.pick(h.selector, h.target)
	if to == nil {
		return p.refuse(r)
	}
	from := h.entry
	h.entry, h.exit = to, to.proxy.ExitIP
	p.occupy(to)
	p.vacate(from)
	return nil
}

// Release ends the lease. A lease that is unknown, or has ended, is released.
func (p *Pool) Release(id string) {
	if h := p.leases[id]; h != nil {
		p.end(h, Released)
	}
}
