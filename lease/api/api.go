// Package api is the lease service on the wire: paths, bodies and the types of
// its errors. It imports nothing of this project.
package api

import "time"

// The paths. {id} is the id of a lease or of a proxy.
const (
	PathLeases    = "/v1/leases"
	PathLease     = "/v1/leases/{id}"
	PathRenew     = "/v1/leases/{id}/renew"
	PathReport    = "/v1/leases/{id}/report"
	PathProxies   = "/v1/proxies"
	PathFreeze    = "/v1/proxies/{id}/freeze"
	PathDrain     = "/v1/proxies/{id}/drain"
	PathUnfreeze  = "/v1/proxies/{id}/unfreeze"
	PathCooldowns = "/v1/cooldowns"
	PathTargets   = "/v1/targets"
	PathEvents    = "/v1/events"
	PathOpenAPI   = "/v1/openapi.json"
	PathHealth    = "/healthz"
	PathReady     = "/readyz"
	PathMetrics   = "/metrics"
)

// HeaderKey is the request header that makes a repeated acquire safe.
const HeaderKey = "Idempotency-Key"

// Acquire is the body of POST /v1/leases. Every field may be left out.
type Acquire struct {
	// Selector restricts the proxies: "country=DE,provider!=gcp".
	Selector string `json:"selector,omitempty"`
	// Target is the site that will be visited: a URL or a host.
	Target string `json:"target,omitempty"`
	// TTL is how long the lease lasts without a renewal: "90s", or seconds.
	TTL Duration `json:"ttl,omitzero"`
	// Session asks for the exit that this session had before.
	Session string `json:"session,omitempty"`
	// SessionMode is "soft" (the default) or "hard".
	SessionMode string `json:"session_mode,omitempty"`
	// Count is how many leases are wanted; 1 when left out.
	Count int `json:"count,omitempty"`
	// Partial accepts fewer than Count, but at least one.
	Partial bool `json:"partial,omitempty"`
	// Client is a name for people to read.
	Client string `json:"client,omitempty"`
	// Wait is how long to queue when no proxy is free: "30s", or seconds.
	Wait Duration `json:"wait,omitzero"`
}

// Lease is a lease in an answer.
type Lease struct {
	// ID renews, reports and releases it.
	ID string `json:"id"`
	// URL is ready to use, with the credentials percent-encoded.
	URL string `json:"url"`
	// Server is the URL without credentials, for browser automation.
	Server string `json:"server"`
	// Username is empty when the proxy asks for none.
	Username string `json:"username,omitempty"`
	// Password goes with Username, as it is.
	Password string `json:"password,omitempty"`
	// Proxy is the id of the proxy.
	Proxy string `json:"proxy"`
	// ProxyState is "healthy", or the state of the proxy; see Proxy.State.
	ProxyState string `json:"proxy_state"`
	// ExitIP is the address that targets see; empty when unknown.
	ExitIP string `json:"exit_ip,omitempty"`
	// Attributes are those of the proxy.
	Attributes map[string]string `json:"attributes,omitempty"`
	// Target is the normalised target.
	Target string `json:"target,omitempty"`
	// Selector is the normalised selector.
	Selector string `json:"selector,omitempty"`
	// Session is the name of the session.
	Session string `json:"session,omitempty"`
	// SessionMode is "soft" or "hard" when Session is set.
	SessionMode string `json:"session_mode,omitempty"`
	// Client is the name that the client gave.
	Client string `json:"client,omitempty"`
	// TTLSeconds is the time left, in seconds. Count from when the request was
	// sent, on a monotonic clock.
	TTLSeconds float64 `json:"ttl_seconds"`
	// ExpiresAt is the same on the server's clock, for people.
	ExpiresAt time.Time `json:"expires_at"`
	// GrantedAt is when it was first granted.
	GrantedAt time.Time `json:"granted_at"`
	// Renewals counts the renewals.
	Renewals int `json:"renewals,omitempty"`
	// MovedFrom is the proxy that the session left in this very answer.
	MovedFrom string `json:"moved_from,omitempty"`
	// MovedReason says why it left.
	MovedReason string `json:"moved_reason,omitempty"`
}

// Leases is the answer of POST /v1/leases and GET /v1/leases.
type Leases struct {
	// Leases are the leases; never null.
	Leases []Lease `json:"leases"`
	// Next is the cursor of the next page of a list; empty on the last one.
	Next string `json:"next,omitempty"`
}

// Renew is the body of a renewal; it may be empty.
type Renew struct {
	// TTL is a new length; the one of the lease when left out.
	TTL Duration `json:"ttl,omitzero"`
}

// Report is the body of a report.
type Report struct {
	// Result is "ok", "blocked" or "failed".
	Result string `json:"result"`
	// Target is the site; that of the lease when left out.
	Target string `json:"target,omitempty"`
}

// Reported is the answer to a report.
type Reported struct {
	// Cooldown is what the report led to; null after "ok".
	Cooldown *Cooldown `json:"cooldown"`
}

// Proxy is a proxy in a list.
type Proxy struct {
	// ID is the name of the instance.
	ID string `json:"id"`
	// Server is its URL without credentials.
	Server string `json:"server"`
	// State is one of free, at_capacity, exit_full, cooling, frozen, draining,
	// no_credentials, unhealthy and gone.
	State string `json:"state"`
	// Reason is the output of its check.
	Reason string `json:"reason,omitempty"`
	// ExitIP is the address that targets see; empty when unknown.
	ExitIP string `json:"exit_ip,omitempty"`
	// Active is how many leases it carries.
	Active int `json:"active"`
	// SharedActive is how many leases its exit address carries.
	SharedActive int `json:"shared_active"`
	// MaxLeases is how many its exit address may carry; 0 is unlimited.
	MaxLeases int `json:"max_leases"`
	// Auth is the name of the credentials that it asks for.
	Auth string `json:"auth,omitempty"`
	// Tags are those of its service.
	Tags []string `json:"tags,omitempty"`
	// Attributes are what selectors match.
	Attributes map[string]string `json:"attributes,omitempty"`
	// CoolingSeconds is how long it cools; 0 when it doesn't.
	CoolingSeconds float64 `json:"cooling_seconds,omitempty"`
	// BlockedTargets are the sites that block its exit now.
	BlockedTargets []string `json:"blocked_targets,omitempty"`
	// Mark is what an operator decided; null for nothing.
	Mark *Mark `json:"mark,omitempty"`
}

// Mark is an operator's decision about a proxy.
type Mark struct {
	// Mark is "frozen" or "draining".
	Mark string `json:"mark"`
	// By is the name of the token that was used.
	By string `json:"by,omitempty"`
	// Reason is what the operator wrote.
	Reason string `json:"reason,omitempty"`
	// At is when.
	At time.Time `json:"at"`
}

// MarkRequest is the body of freeze, drain and unfreeze; it may be empty.
type MarkRequest struct {
	// Reason is for people.
	Reason string `json:"reason,omitempty"`
}

// Proxies is the answer of GET /v1/proxies.
type Proxies struct {
	// Proxies are the proxies; never null.
	Proxies []Proxy `json:"proxies"`
	// Next is the cursor of the next page; empty on the last one.
	Next string `json:"next,omitempty"`
}

// Cooldown keeps an exit from being leased.
type Cooldown struct {
	// Exit is the exit address, or the id of a proxy whose exit is unknown.
	Exit string `json:"exit"`
	// Target is the site that blocks it; empty for all sites, after failures.
	Target string `json:"target,omitempty"`
	// Proxies are the ids of the proxies with that exit.
	Proxies []string `json:"proxies,omitempty"`
	// Strikes counts the cooldowns that followed each other.
	Strikes int `json:"strikes"`
	// RemainingSeconds is the time left.
	RemainingSeconds float64 `json:"remaining_seconds"`
	// Until is the same on the server's clock.
	Until time.Time `json:"until"`
}

// Cooldowns is the answer of GET /v1/cooldowns.
type Cooldowns struct {
	// Cooldowns are the cooldowns; never null.
	Cooldowns []Cooldown `json:"cooldowns"`
	// Next is the cursor of the next page; empty on the last one.
	Next string `json:"next,omitempty"`
}

// Target is a place where proxies are launched, as one node sees it: a
// hypervisor, a project, an API server, or the node itself.
type Target struct {
	// ID is unique among all nodes.
	ID string `json:"id"`
	// Provider is the name of the provider in the driver's configuration.
	Provider string `json:"provider"`
	// Target is its name in the provider; "local" for the node itself.
	Target string `json:"target"`
	// Type of the provider: "kvm", "gcp", "kube", "process" or "external".
	Type string `json:"type"`
	// Node is who sees it so.
	Node string `json:"node"`
	// State is "ready", "not_ready", or "silent" when the node was not heard of.
	State string `json:"state"`
	// Reason is one word for the state; docs/health.md has a row for each.
	Reason string `json:"reason"`
	// Advice says what a person does about the reason.
	Advice string `json:"advice,omitempty"`
	// Facts are what the node knows of it, in the bands of its attributes:
	// pool_available_gib and others.
	Facts map[string]string `json:"facts,omitempty"`
}

// Targets is the answer of GET /v1/targets.
type Targets struct {
	// Targets are the targets; never null.
	Targets []Target `json:"targets"`
	// Next is the cursor of the next page; empty on the last one.
	Next string `json:"next,omitempty"`
}

// Event is the data of a server-sent event of GET /v1/events.
type Event struct {
	// Lease is set for lease.granted, renewed, moved and ended.
	Lease *Lease `json:"lease,omitempty"`
	// Proxy is set for proxy.added, changed and removed.
	Proxy *Proxy `json:"proxy,omitempty"`
	// Cooldown is set for cooldown.started and ended.
	Cooldown *Cooldown `json:"cooldown,omitempty"`
	// Target is set for target.added, changed and removed.
	Target *Target `json:"target,omitempty"`
	// Reason says why a lease ended or moved.
	Reason string `json:"reason,omitempty"`
}

// Ready is the answer of GET /readyz.
type Ready struct {
	// Ready is true when the service can grant leases.
	Ready bool `json:"ready"`
	// Reason says why not, or what requests have to wait for.
	Reason string `json:"reason,omitempty"`
	// Role is "leader" or "follower".
	Role string `json:"role"`
	// Leader is the address of the leader, as far as it is known.
	Leader string `json:"leader,omitempty"`
}
