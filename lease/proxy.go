package lease

import (
	"net"
	"net/netip"
	"slices"
	"strconv"
)

// Proxy is one entry of the pool, as the catalog describes it. A Proxy that the
// pool has seen is never changed; a new description replaces it.
type Proxy struct {
	// ID is unique in the pool and stays the same as long as the proxy exists.
	ID string
	// Address is a name or an IP address without brackets.
	Address string
	// Port is where it listens.
	Port int
	// Scheme of the proxy's own URL; "http" when empty.
	Scheme string
	// Auth names the credentials that clients need; empty for none.
	Auth string
	// ExitIP is the address that targets see; invalid when unknown.
	ExitIP netip.Addr
	// MaxLeases is how many leases it carries at once; 0 is unlimited.
	MaxLeases int
	// Tags are the tags of its service.
	Tags []string
	// Attributes are what selectors match: the service's meta.
	Attributes map[string]string
	// Healthy is true when its checks in Consul pass.
	Healthy bool
	// Reason is the output of its check, for people.
	Reason string
}

// HostPort is the address that clients connect to, with brackets around IPv6.
func (p *Proxy) HostPort() string {
	return net.JoinHostPort(p.Address, strconv.Itoa(p.Port))
}

// groupKey names what shares capacity and cooldowns: the exit address or, as
// long as it is unknown, the proxy alone.
func (p *Proxy) groupKey() string {
	if p.ExitIP.IsValid() {
		return "ip/" + p.ExitIP.Unmap().String()
	}
	return "id/" + p.ID
}

// equal is true when nothing that the pool acts on, or shows, differs.
func (p *Proxy) equal(o *Proxy) bool {
	if p.ID != o.ID || p.Address != o.Address || p.Port != o.Port || p.Scheme != o.Scheme ||
		p.Auth != o.Auth || p.ExitIP != o.ExitIP || p.MaxLeases != o.MaxLeases ||
		p.Healthy != o.Healthy || p.Reason != o.Reason || !p.sameLabels(o) {
		return false
	}
	return true
}

// sameLabels is true when every selector gives the same answer for both.
func (p *Proxy) sameLabels(o *Proxy) bool {
	if !slices.Equal(p.Tags, o.Tags) || len(p.Attributes) != len(o.Attributes) {
		return false
	}
	for k, v := range p.Attributes {
		if w, ok := o.Attributes[k]; !ok || w != v {
			return false
		}
	}
	return true
}

// Disposition says whether a proxy can be leased now and, if not, why not. The
// first that applies in the order of the constants counts.
type Disposition uint8

// The dispositions.
const (
	// Gone: no longer in the catalog; it only carries leases to their end.
	Gone Disposition = iota
	// Unhealthy: its check does not pass.
	Unhealthy
	// NoCredentials: the catalog names credentials that the service hasn't.
	NoCredentials
	// Draining: an operator takes it out of service.
	Draining
	// Frozen: an operator stopped new leases.
	Frozen
	// Cooling: clients reported that it failed.
	Cooling
	// AtCapacity: it carries as many leases as it may.
	AtCapacity
	// ExitFull: it could carry more, and its exit address, which it shares with
	// other proxies, can't.
	ExitFull
	// Free: it can be leased.
	Free

	dispositions = int(Free) + 1
)

// String is the name used in the API and in metrics.
func (d Disposition) String() string {
	return [...]string{"gone", "unhealthy", "no_credentials", "draining", "frozen", "cooling", "at_capacity", "exit_full", "free"}[d]
}

// Mark is what an operator decided about a proxy.
type Mark string

// The marks.
const (
	// MarkNone lets it be leased.
	MarkNone Mark = ""
	// MarkFreeze stops new leases; those that exist go on and may be renewed.
	MarkFreeze Mark = "frozen"
	// MarkDrain stops new leases and renewals.
	MarkDrain Mark = "draining"
)
