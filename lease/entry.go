package lease

// entry is a proxy in the pool.
type entry struct {
	proxy *Proxy
	group *group
	mark  Mark
	// index is the entry's place in the bitmaps of the views.
	index int
	// active counts the leases on this proxy; group.active those that share
	// its exit.
	active int
	// seq is the pool's sequence number at the last grant, 0 for never.
	seq uint64
	// gone is true when the catalog no longer has the proxy.
	gone bool
	// locked is true when the proxy's credentials are not known.
	locked bool
	// fit is true when the proxy by itself could be leased. enter finds it out,
	// so that an acquire need not look at the description.
	fit bool
	// state is what the views have counted it as.
	state Disposition
}

// group is the proxies with one exit address. They share capacity and
// cooldowns, since a target can't tell them apart.
type group struct {
	// index is the group's place in the arrays of the views.
	index   int
	members []*entry
	active  int
	seq     uint64
	// limit is the smallest limit of its members; 0 is unlimited.
	limit int
	// failed is the cooldown of the whole exit; nil for none.
	failed *cooldown
	// blocked are the cooldowns by target.
	blocked map[string]*cooldown
	key     string
	// alone holds the member of a group that has one, as most have: beside the
	// rest of the group in memory.
	alone [1]*entry
}

// disposition is the first reason that applies, or Free.
func (e *entry) disposition() Disposition {
	if !e.fit {
		if d := e.fault(); d != Free {
			return d
		}
	}
	switch {
	case e.group.failed != nil && e.group.failed.cooling:
		return Cooling
	case e.group.full() && len(e.group.members) > 1 && !e.full():
		return ExitFull
	case e.group.full():
		return AtCapacity
	default:
		return Free
	}
}

// fault is what keeps the proxy by itself from being leased, or Free.
func (e *entry) fault() Disposition {
	switch {
	case e.gone:
		return Gone
	case !e.proxy.Healthy:
		return Unhealthy
	case e.locked:
		return NoCredentials
	case e.mark == MarkDrain:
		return Draining
	case e.mark == MarkFreeze:
		return Frozen
	default:
		return Free
	}
}

// full is true when the proxy by itself carries all the leases that it may.
func (e *entry) full() bool { return e.proxy.MaxLeases > 0 && e.active >= e.proxy.MaxLeases }

func (g *group) full() bool { return g.limit > 0 && g.active >= g.limit }

// open is true when the exit as such could take a lease.
func (g *group) open() bool {
	return !g.full() && (g.failed == nil || !g.failed.cooling)
}

// blockedBy is true when clients reported that the target refuses the exit.
func (g *group) blockedBy(target string) bool {
	c := g.blocked[target]
	return c != nil && c.cooling
}

// countLimit finds the group's limit: the strictest one of its members.
func (g *group) countLimit() {
	g.limit = 0
	for _, e := range g.members {
		if n := e.proxy.MaxLeases; n > 0 && !e.gone && (g.limit == 0 || n < g.limit) {
			g.limit = n
		}
	}
}
