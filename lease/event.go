package lease

// Event is something that changed in the pool.
type Event struct {
	// Kind says what, and which of the other fields are set.
	Kind EventKind
	// Lease is set for the kinds of leases.
	Lease *Lease
	// Proxy is set for the kinds of proxies.
	Proxy *ProxyStatus
	// Cooldown is set for the kinds of cooldowns.
	Cooldown *Cooldown
	// Place is set for the kinds of places.
	Place *Place
	// Reason says why a lease ended or moved.
	Reason EndReason
}

// EventKind is a kind of event.
type EventKind string

// The kinds of events.
const (
	LeaseGranted    EventKind = "lease.granted"
	LeaseRenewed    EventKind = "lease.renewed"
	LeaseMoved      EventKind = "lease.moved"
	LeaseEnded      EventKind = "lease.ended"
	ProxyAdded      EventKind = "proxy.added"
	ProxyChanged    EventKind = "proxy.changed"
	ProxyRemoved    EventKind = "proxy.removed"
	CooldownStarted EventKind = "cooldown.started"
	CooldownEnded   EventKind = "cooldown.ended"
	PlaceAdded      EventKind = "target.added"
	PlaceChanged    EventKind = "target.changed"
	PlaceRemoved    EventKind = "target.removed"
)

func (p *Pool) tellProxy(kind EventKind, e *entry) {
	if p.listen != nil {
		status := p.status(e)
		p.listen(Event{Kind: kind, Proxy: &status})
	}
}

func (p *Pool) tellCooldown(kind EventKind, c *cooldown) {
	if p.listen != nil {
		told := p.tell(c)
		p.listen(Event{Kind: kind, Cooldown: &told})
	}
}
