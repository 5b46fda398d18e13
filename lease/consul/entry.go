package consul

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/hashicorp/consul/api"

	"github.com/egress-proxies/egress/lease"
)

// entry is the part of a health entry that is needed. Reading only that is
// three times as fast as api.ServiceEntry for a large service.
type entry struct {
	Node struct {
		Node    string
		Address string
	}
	Service struct {
		ID      string
		Address string
		Port    int
		Tags    []string
		Meta    map[string]string
	}
	Checks []struct {
		ServiceID string
		Status    string
		Output    string
	}
}

// The keys of the service meta that mean something here. The driver writes
// them; docs/architecture.md has the contract.
const (
	metaInstance  = "instance"
	metaMaxLeases = "max_leases"
	metaExitIP    = "exit_ip"
	metaScheme    = "scheme"
	metaAuth      = "auth"
	// exitPrefix starts attributes that were measured at the exit: exit_country
	// wins over country.
	exitPrefix = "exit_"
)

// proxy reads the entry.
func (e *entry) proxy() (*lease.Proxy, error) {
	meta := e.Service.Meta
	p := &lease.Proxy{
		ID:         meta[metaInstance],
		Address:    e.Service.Address,
		Port:       e.Service.Port,
		Scheme:     meta[metaScheme],
		Auth:       meta[metaAuth],
		MaxLeases:  1,
		Tags:       e.Service.Tags,
		Attributes: attributes(meta),
	}
	if p.ID == "" {
		p.ID = e.Service.ID
	}
	if p.Address == "" {
		p.Address = e.Node.Address
	}
	if p.ID == "" || p.Address == "" || p.Port < 1 || p.Port > 65535 {
		return nil, fmt.Errorf("want an id, an address and a port of 1 to 65535, got %q, %q and %d", p.ID, p.Address, p.Port)
	}
	if addr, err := netip.ParseAddr(strings.Trim(p.Address, "[]")); err == nil {
		p.Address = addr.Unmap().String() // one address in two spellings is one
	}
	if text := meta[metaMaxLeases]; text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 0 {
			return nil, fmt.Errorf("%s %q: want a number from 0, which is unlimited", metaMaxLeases, text)
		}
		p.MaxLeases = n
	}
	if text := meta[metaExitIP]; text != "" {
		addr, err := netip.ParseAddr(text)
		if err != nil {
			return nil, fmt.Errorf("%s %q: want an IP address", metaExitIP, text)
		}
		p.ExitIP = addr.Unmap()
	}
	p.Healthy, p.Reason = e.health()
	return p, nil
}

// health is true when every check passes. A warning does not pass: the driver
// never gives one, so somebody else did, with a reason.
func (e *entry) health() (healthy bool, reason string) {
	healthy = true
	for _, c := range e.Checks {
		if c.Status != api.HealthPassing {
			if healthy || c.ServiceID != "" {
				reason = strings.TrimSpace(c.Output)
				if reason == "" {
					reason = "the check is " + c.Status
				}
			}
			healthy = false
		} else if healthy && c.ServiceID != "" {
			reason = strings.TrimSpace(c.Output)
		}
	}
	return healthy, reason
}

// attributes are the meta, with what was measured at the exit in the place of
// what the label says.
func attributes(meta map[string]string) map[string]string {
	measured := false
	for key := range meta {
		if strings.HasPrefix(key, exitPrefix) && key != metaExitIP {
			measured = true
		}
	}
	if !measured {
		return meta
	}
	out := make(map[string]string, len(meta))
	for key, value := range meta {
		out[key] = value
	}
	for key, value := range meta {
		if name, ok := strings.CutPrefix(key, exitPrefix); ok && key != metaExitIP && value != "" {
			out[name] = value
		}
	}
	return out
}
