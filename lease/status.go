package lease

import (
	"slices"
	"strings"
	"time"
)

// ProxyStatus is a proxy with what the pool knows about it.
type ProxyStatus struct {
	// Proxy is the description in the catalog.
	Proxy *Proxy
	// State says whether it can be leased now.
	State Disposition
	// Active is how many leases it carries; those of its exit are in Shared.
	Active int
	// Shared is how many leases its exit address carries.
	Shared int
	// Limit is how many leases its exit address may carry; 0 is unlimited.
	Limit int
	// Mark is what an operator decided.
	Mark MarkInfo
	// CoolingFor is how long it cools; 0 when it doesn't.
	CoolingFor time.Duration
	// Blocked are the targets that block its exit now.
	Blocked []string
}

func (p *Pool) status(e *entry) ProxyStatus {
	s := ProxyStatus{
		Proxy:  e.proxy,
		State:  e.state,
		Active: e.active,
		Shared: e.group.active,
		Limit:  e.group.limit,
		Mark:   p.marks[e.proxy.ID],
	}
	if c := e.group.failed; c != nil && c.cooling {
		s.CoolingFor = c.at - p.now
	}
	for target, c := range e.group.blocked {
		if c.cooling {
			s.Blocked = append(s.Blocked, target)
		}
	}
	slices.Sort(s.Blocked)
	return s
}

// Proxies are all proxies that the selector chooses, by id.
func (p *Pool) Proxies(s Selector) []ProxyStatus {
	list := make([]ProxyStatus, 0, len(p.entries))
	for _, e := range p.entries {
		if s.Matches(e.proxy) {
			list = append(list, p.status(e))
		}
	}
	slices.SortFunc(list, func(a, b ProxyStatus) int { return strings.Compare(a.Proxy.ID, b.Proxy.ID) })
	return list
}

// Leases are all leases, by id.
func (p *Pool) Leases() []Lease {
	list := make([]Lease, 0, len(p.leases))
	for _, h := range p.leases {
		list = append(list, p.snapshot(h))
	}
	slices.SortFunc(list, func(a, b Lease) int { return strings.Compare(a.ID, b.ID) })
	return list
}

// Lease is one lease. The error is ErrUnknownLease or an *EndedError.
func (p *Pool) Lease(id string) (Lease, error) {
	h, err := p.find(id)
	if err != nil {
		return Lease{}, err
	}
	return p.snapshot(h), nil
}

// Cooldowns are the exits that cool now, by exit and target.
func (p *Pool) Cooldowns() []Cooldown {
	list := []Cooldown{}
	for _, g := range p.groups {
		if g.failed != nil && g.failed.cooling {
			list = append(list, p.tell(g.failed))
		}
		for _, c := range g.blocked {
			if c.cooling {
				list = append(list, p.tell(c))
			}
		}
	}
	slices.SortFunc(list, func(a, b Cooldown) int {
		if n := strings.Compare(a.Exit, b.Exit); n != 0 {
			return n
		}
		return strings.Compare(a.Target, b.Target)
	})
	return list
}

// Stats are the numbers behind the gauges.
type Stats struct {
	// Proxies counts by provider and state.
	Proxies map[ProxyClass]int
	// Slots is the sum of the limits of all exits that can be leased or are
	// full; exits without a limit count as what they carry.
	Slots int
	// Leases is how many leases there are.
	Leases int
	// CoolingExits is how many exits cool for all targets.
	CoolingExits int
	// CoolingPairs is how many (exit, target) pairs cool.
	CoolingPairs int
	// Sessions is how many sessions are remembered.
	Sessions int
}

// ProxyClass is what proxies are counted by.
type ProxyClass struct {
	// Provider is the attribute of that name.
	Provider string
	// State is whether they can be leased.
	State Disposition
}

// Stats counts the pool.
func (p *Pool) Stats() Stats {
	s := Stats{Proxies: map[ProxyClass]int{}, Leases: len(p.leases), Sessions: len(p.sessions)}
	for _, e := range p.entries {
		s.Proxies[ProxyClass{e.proxy.Attributes["provider"], e.state}]++
	}
	for _, g := range p.groups {
		if g.failed != nil && g.failed.cooling {
			s.CoolingExits++
		}
		for _, e := range g.members {
			if e.fit {
				s.Slots += max(g.limit, g.active*min(1, max(0, 1-g.limit)))
				break
			}
		}
	}
	for _, groups := range p.blockers {
		s.CoolingPairs += len(groups)
	}
	return s
}
