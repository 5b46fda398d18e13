// Package lease holds the rules by which working proxies are lent to clients:
// who gets which proxy, for how long, and when it is not given out.
//
// Pool decides in memory and knows neither time nor storage: every method gets
// the time it happens at and records what must be stored. Service puts a clock,
// a queue and a Store around it. docs/lease-api.md has each rule as a table.
package lease

import (
	"net/netip"
	"time"
)

// Lease is the right of one client to use one proxy until it expires.
type Lease struct {
	// ID is unguessable; whoever knows it can renew, report and release.
	ID string
	// Proxy is what was leased, as the pool knew it last.
	Proxy *Proxy
	// ExitIP is the exit address that the lease was granted on; invalid when
	// the proxy's exit is unknown.
	ExitIP netip.Addr
	// Target is the normalised site that the client said it would visit; may
	// be empty.
	Target string
	// Client is the name that the client gave for people to read; may be empty.
	Client string
	// Session is the name of the session; empty for none.
	Session string
	// Mode says what happens to the session when its proxy fails.
	Mode SessionMode
	// Selector is the selector as the client wrote it, normalised.
	Selector string
	// TTL is how long each grant and renewal lasts.
	TTL time.Duration
	// GrantedAt is when it was first granted.
	GrantedAt time.Time
	// ExpiresAt is when it ends without a renewal, on the service's clock.
	ExpiresAt time.Time
	// Remaining is the time left when this copy was made.
	Remaining time.Duration
	// State is the state of the proxy when this copy was made.
	State Disposition
	// MovedFrom is the id of the proxy that the lease left in this answer.
	MovedFrom string
	// MovedReason says why it left.
	MovedReason EndReason
	// Renewals counts the renewals.
	Renewals int
}

// SessionMode says what happens to a session whose proxy fails.
type SessionMode string

// The modes of a session.
const (
	// Soft sessions move to another proxy and say so.
	Soft SessionMode = "soft"
	// Hard sessions end.
	Hard SessionMode = "hard"
)

// EndReason says why a lease ended, or left its proxy.
type EndReason string

// The reasons.
const (
	// Released: the client gave it back.
	Released EndReason = "released"
	// Expired: it was not renewed in time.
	Expired EndReason = "expired"
	// ProxyUnhealthy: the proxy's check in Consul is not passing.
	ProxyUnhealthy EndReason = "proxy-unhealthy"
	// ProxyGone: the proxy is no longer in the catalog.
	ProxyGone EndReason = "proxy-gone"
	// ProxyDraining: an operator takes the proxy out of service.
	ProxyDraining EndReason = "proxy-draining"
	// ProxyFrozen: an operator stopped new leases on the proxy. It never ends
	// a lease; it moves a soft session that comes back.
	ProxyFrozen EndReason = "proxy-frozen"
	// ProxyCooling: clients reported the proxy, or the proxy for this target.
	ProxyCooling EndReason = "proxy-cooling"
	// ProxyUnmatched: the proxy no longer matches the selector.
	ProxyUnmatched EndReason = "proxy-unmatched"
	// ExitChanged: the proxy leaves by another address than before.
	ExitChanged EndReason = "exit-changed"
)

// Result is what a client says about its use of a proxy.
type Result string

// The results.
const (
	// OK forgives what was reported before.
	OK Result = "ok"
	// Blocked: the target refused this exit address.
	Blocked Result = "blocked"
	// Failed: the proxy did not work.
	Failed Result = "failed"
)

// Request asks for leases. Make it with NewRequest, which validates.
type Request struct {
	// Selector restricts the proxies; the zero value takes any.
	Selector Selector
	// Target is the normalised site; empty for none.
	Target string
	// TTL is how long a lease lasts without a renewal.
	TTL time.Duration
	// Session asks for the proxy that the session had before.
	Session string
	// Mode is Soft or Hard when Session is set.
	Mode SessionMode
	// Count is how many leases are wanted, at least 1.
	Count int
	// Partial accepts fewer than Count, but at least one.
	Partial bool
	// Client is a name for people to read.
	Client string
	// Key makes a repeated request give the same leases.
	Key string
	// Wait is how long to queue when there is no capacity; 0 is not at all.
	Wait time.Duration
}
