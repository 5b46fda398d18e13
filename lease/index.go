package lease

// maxViews bounds the indexes that are kept. Each costs 40 bytes per group and
// is updated with every grant; the one unused for longest is dropped.
const maxViews = 64

// smallBans is how many blocked groups a pick steps over before an index that
// leaves them out is made for the target.
const smallBans = 16

type viewKey struct{ selector, target string }

// view gives the index of a selector, and of a target when it has one of its
// own, making it when it does not exist.
func (p *Pool) view(s Selector, target string) *view {
	p.lookups++
	key := viewKey{s.String(), target}
	if v := p.views[key]; v != nil {
		v.used = p.lookups
		return v
	}
	if len(p.views) >= maxViews {
		p.dropView()
	}
	v := &view{selector: s, target: target, used: p.lookups, heap: make([]slot, root), first: nowhere, last: nowhere}
	p.views[key] = v
	p.viewList = append(p.viewList, v)
	for _, e := range p.entries {
		if !e.gone && s.Matches(e.proxy) {
			v.set(e, true)
			v.counts[e.state]++
			v.grow(e.group)
			if e.fit {
				v.seats[e.group.index].usable++
			}
		}
	}
	for _, g := range p.groups {
		v.place(p, g)
	}
	return v
}

// dropView forgets the view that was not needed for longest.
func (p *Pool) dropView() {
	oldest := 0
	for i, v := range p.viewList {
		if v.used < p.viewList[oldest].used {
			oldest = i
		}
	}
	v := p.viewList[oldest]
	delete(p.views, viewKey{v.selector.String(), v.target})
	last := len(p.viewList) - 1
	p.viewList[oldest] = p.viewList[last]
	p.viewList[last] = nil
	p.viewList = p.viewList[:last]
}

// leave takes the entry out of every view, before something changes on which
// its membership or its group depends.
func (p *Pool) leave(e *entry) {
	for _, v := range p.viewList {
		if !v.has(e) {
			continue
		}
		v.set(e, false)
		v.counts[e.state]--
		if e.fit {
			v.seats[e.group.index].usable--
		}
		v.place(p, e.group)
	}
}

// enter puts the entry into the views whose selector chooses it.
func (p *Pool) enter(e *entry) {
	p.version++
	e.fit = e.fault() == Free
	e.state = e.disposition()
	if e.gone {
		return
	}
	for _, v := range p.viewList {
		if !v.selector.Matches(e.proxy) {
			continue
		}
		v.set(e, true)
		v.counts[e.state]++
		v.grow(e.group)
		if e.fit {
			v.seats[e.group.index].usable++
		}
		v.place(p, e.group)
	}
}

// touched follows a change of the group's leases or of its cooldown.
func (p *Pool) touched(g *group) {
	p.version++
	for _, e := range g.members {
		now := e.disposition()
		if now == e.state {
			continue
		}
		for _, v := range p.viewList {
			if v.has(e) {
				v.counts[e.state]--
				v.counts[now]++
			}
		}
		e.state = now
	}
	for _, v := range p.viewList {
		if g.index < len(v.seats) && v.seats[g.index].usable > 0 {
			v.place(p, g)
		}
	}
}

// retarget follows a change of what one target blocks.
func (p *Pool) retarget(g *group, target string) {
	p.version++
	for _, v := range p.viewList {
		if v.target == target {
			v.place(p, g)
		}
	}
}

// pick finds the proxy that is to be leased next, or nil.
func (p *Pool) pick(s Selector, target string) *entry {
	bans := len(p.blockers[target])
	if target != "" && bans > smallBans {
		return p.first(p.view(s, target))
	}
	v := p.view(s, "")
	if bans == 0 {
		return p.first(v)
	}
	var skipped [smallBans + 1]*group
	n := 0
	var found *entry
	for top := v.top(p); n < len(skipped) && top != nowhere; top = v.top(p) {
		g := p.slots[top]
		if !g.blockedBy(target) {
			found = p.first(v)
			break
		}
		v.lift(p, top)
		skipped[n] = g
		n++
	}
	for _, g := range skipped[:n] {
		v.place(p, g)
	}
	return found
}

// first is the proxy to lease of the view's first group.
func (p *Pool) first(v *view) *entry {
	top := v.top(p)
	if top == nowhere {
		return nil
	}
	g := p.slots[top]
	var best *entry
	for _, e := range g.members {
		if v.has(e) && e.fit && (best == nil || e.before(best)) {
			best = e
		}
	}
	return best
}

// before is the order of selection among the members of a group.
func (e *entry) before(o *entry) bool {
	if e.active != o.active {
		return e.active < o.active
	}
	if e.seq != o.seq {
		return e.seq < o.seq
	}
	return e.proxy.ID < o.proxy.ID
}
