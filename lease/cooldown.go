package lease

import "time"

// cooldown keeps an exit from being leased, for one target or for all. After it
// the exit is watched for as long again: a report in that time makes the next
// cooldown twice as long.
type cooldown struct {
	alarm
	group  *group
	target string
	// strikes counts the cooldowns that followed each other.
	strikes int
	// length is how long this one lasts.
	length time.Duration
	// cooling is true first; then the cooldown is only remembered.
	cooling bool
}

// Cooldown is a cooldown as the world sees it.
type Cooldown struct {
	// Exit is the exit address or, when it is unknown, the id of the proxy.
	Exit string
	// Target is the site that blocks the exit; empty for all, after failures.
	Target string
	// Proxies are the ids of the proxies with that exit.
	Proxies []string
	// Strikes counts the cooldowns that followed each other, from 1.
	Strikes int
	// Until is when it ends, on the service's clock.
	Until time.Time
	// Remaining is the time left.
	Remaining time.Duration
}

// ring ends the cooling, or the memory of it.
func (c *cooldown) ring(p *Pool) {
	if !c.cooling {
		p.dropCooldown(c)
		return
	}
	p.alarms.set(&c.alarm, c.at+c.length)
	p.setCooling(c, false)
	p.storeCooldown(c)
	p.tellCooldown(CooldownEnded, c)
}

// setCooling switches what the views know about the exit.
func (p *Pool) setCooling(c *cooldown, cooling bool) {
	c.cooling = cooling
	if !cooling {
		p.roomy = true
	}
	if c.target == "" {
		p.touched(c.group)
		return
	}
	if cooling {
		if p.blockers[c.target] == nil {
			p.blockers[c.target] = map[*group]struct{}{}
		}
		p.blockers[c.target][c.group] = struct{}{}
	} else {
		delete(p.blockers[c.target], c.group)
		if len(p.blockers[c.target]) == 0 {
			delete(p.blockers, c.target)
		}
	}
	p.retarget(c.group, c.target)
}

// Report takes what the client of a lease says about it. target may differ from
// the lease's; empty is the lease's. Reports that arrive while the pair cools
// change nothing: they tell of the same refusal. The error is ErrUnknownLease,
// an *EndedError, or ErrInvalid for "blocked" without any target.
func (p *Pool) Report(id string, result Result, target string) (*Cooldown, error) {
	h, err := p.find(id)
	if err != nil {
		return nil, err
	}
	if target == "" {
		target = h.target
	}
	g := h.entry.group
	switch result {
	case OK:
		p.forgive(g.failed)
		p.forgive(g.blocked[target])
		return nil, nil
	case Failed:
		return p.cool(g, "", p.rules.Failed), nil
	}
	if target == "" {
		return nil, &FieldError{Field: "target", Pos: -1, Want: "want the site that blocked, since the lease names none"}
	}
	return p.cool(g, target, p.rules.Blocked), nil
}

// forgive drops what is remembered, unless it is still cooling.
func (p *Pool) forgive(c *cooldown) {
	if c != nil && !c.cooling {
		p.dropCooldown(c)
	}
}

// cool starts a cooldown of the exit, or gives the one that runs.
func (p *Pool) cool(g *group, target string, b Backoff) *Cooldown {
	c := g.failed
	if target != "" {
		c = g.blocked[target]
	}
	if c == nil {
		c = p.newCooldown(g, target)
	}
	if !c.cooling {
		c.length = b.after(c.strikes)
		c.strikes++
		p.alarms.set(&c.alarm, p.now+c.length)
		p.setCooling(c, true)
		p.storeCooldown(c)
		p.tellCooldown(CooldownStarted, c)
	}
	told := p.tell(c)
	return &told
}

// newCooldown attaches a cooldown to the group.
func (p *Pool) newCooldown(g *group, target string) *cooldown {
	c := &cooldown{group: g, target: target, alarm: alarm{pos: unset}}
	c.own = c
	if target == "" {
		g.failed = c
		return c
	}
	if g.blocked == nil {
		g.blocked = map[string]*cooldown{}
	}
	g.blocked[target] = c
	return c
}

// dropCooldown forgets it, in memory and in the store.
func (p *Pool) dropCooldown(c *cooldown) {
	p.detach(c)
	if p.durable {
		p.changes = append(p.changes, Change{Key: cooldownKey(c.group.key, c.target)})
	}
	p.dropGroup(c.group)
}

// detach takes the cooldown off its group.
func (p *Pool) detach(c *cooldown) {
	p.alarms.stop(&c.alarm)
	if c.cooling {
		p.setCooling(c, false)
	}
	if c.target == "" {
		c.group.failed = nil
	} else {
		delete(c.group.blocked, c.target)
	}
}

// moveCooldown gives the cooldown to another group.
func (p *Pool) moveCooldown(c *cooldown, to *group) {
	cooling, at := c.cooling, c.at
	from := c.group
	p.detach(c)
	if p.durable {
		p.changes = append(p.changes, Change{Key: cooldownKey(from.key, c.target)})
	}
	moved := p.newCooldown(to, c.target)
	moved.strikes, moved.length = c.strikes, c.length
	p.alarms.set(&moved.alarm, at)
	if cooling {
		p.setCooling(moved, true)
	}
	p.storeCooldown(moved)
}

// tell is the cooldown as the world sees it.
func (p *Pool) tell(c *cooldown) Cooldown {
	told := Cooldown{
		Exit:      c.group.key[3:],
		Target:    c.target,
		Strikes:   c.strikes,
		Until:     p.time(c.at),
		Remaining: max(0, c.at-p.now),
	}
	for _, e := range c.group.members {
		told.Proxies = append(told.Proxies, e.proxy.ID)
	}
	return told
}
