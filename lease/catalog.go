package lease

// replace gives the entry a new description.
func (p *Pool) replace(e *entry, proxy *Proxy) {
	old := e.proxy
	if !proxy.ExitIP.IsValid() && old.ExitIP.IsValid() && old.HostPort() == proxy.HostPort() {
		// The probe has no answer about the exit; the last one still holds.
		known := *proxy
		known.ExitIP = old.ExitIP
		proxy = &known
		if !e.gone && old.equal(proxy) {
			return
		}
	}
	wasGone := e.gone
	from := e.group
	p.leave(e)
	e.proxy, e.gone, e.locked = proxy, false, p.locked(proxy.Auth)
	if to := proxy.groupKey(); to != from.key {
		p.part(e)
		p.join(e)
		if !old.ExitIP.IsValid() {
			p.inherit(from, e.group)
		}
	} else {
		from.countLimit()
	}
	p.enter(e)
	p.touched(e.group)
	p.roomy = true
	if wasGone {
		p.tellProxy(ProxyAdded, e)
	} else {
		p.tellProxy(ProxyChanged, e)
	}
	if old.ExitIP.IsValid() && old.ExitIP != proxy.ExitIP {
		p.exitChanged(e)
	}
}

// inherit gives the cooldowns of a proxy whose exit was unknown to its exit.
func (p *Pool) inherit(from, to *group) {
	if len(from.members) > 0 {
		return
	}
	if c := from.failed; c != nil && to.failed == nil {
		p.moveCooldown(c, to)
	}
	for target, c := range from.blocked {
		if to.blocked[target] == nil {
			p.moveCooldown(c, to)
		}
	}
	p.dropGroup(from)
}

// exitChanged ends the leases of hard sessions on the proxy: they were promised
// the old address.
func (p *Pool) exitChanged(e *entry) {
	if e.active == 0 {
		return
	}
	for _, h := range p.leases {
		if h.entry == e && h.mode == Hard && h.session != "" && h.exit.IsValid() && h.exit != e.proxy.ExitIP {
			p.endSession(h.session)
			p.end(h, ExitChanged)
		}
	}
}

// lose follows the proxy's leaving the catalog.
func (p *Pool) lose(e *entry) {
	p.leave(e)
	e.gone, e.fit = true, false
	e.state = Gone
	e.group.countLimit()
	p.touched(e.group)
	p.tellProxy(ProxyRemoved, e)
	p.dropEntry(e)
}

// dropEntry forgets a proxy that has left the catalog and carries no lease.
func (p *Pool) dropEntry(e *entry) {
	if !e.gone || e.active > 0 {
		return
	}
	p.part(e)
	delete(p.entries, e.proxy.ID)
	p.freeEntries = append(p.freeEntries, e.index)
}
