package http

import (
	"net/netip"
	"net/url"

	"github.com/egress-proxies/egress/lease"
	"github.com/egress-proxies/egress/lease/api"
)

// proxyURL is the proxy's URL, with credentials where it asks for them.
func (s *Server) proxyURL(p *lease.Proxy) (full, server, username, password string) {
	u := url.URL{Scheme: p.Scheme, Host: p.HostPort()}
	if u.Scheme == "" {
		u.Scheme = "http"
	}
	server = u.String()
	full = server
	if p.Auth != "" {
		var ok bool
		if username, password, ok = s.Credentials(p.Auth); ok {
			u.User = url.UserPassword(username, password)
			full = u.String()
		}
	}
	return full, server, username, password
}

func (s *Server) wireLeases(list []lease.Lease) []api.Lease {
	out := make([]api.Lease, len(list))
	for i := range list {
		out[i] = s.wireLease(&list[i])
	}
	return out
}

func (s *Server) wireLease(l *lease.Lease) api.Lease {
	out := api.Lease{
		ID:          l.ID,
		Proxy:       l.Proxy.ID,
		ProxyState:  proxyState(l.State),
		ExitIP:      addr(l.ExitIP),
		Attributes:  l.Proxy.Attributes,
		Target:      l.Target,
		Selector:    l.Selector,
		Session:     l.Session,
		SessionMode: string(l.Mode),
		Client:      l.Client,
		TTLSeconds:  seconds(l.Remaining),
		ExpiresAt:   l.ExpiresAt.UTC(),
		GrantedAt:   l.GrantedAt.UTC(),
		Renewals:    l.Renewals,
		MovedFrom:   l.MovedFrom,
		MovedReason: string(l.MovedReason),
	}
	out.URL, out.Server, out.Username, out.Password = s.proxyURL(l.Proxy)
	return out
}

// healthy is the state of a leased proxy with which nothing is wrong.
const healthy = "healthy"

// proxyState is the state of a leased proxy: whether it is full matters only to
// who wants a further lease.
func proxyState(d lease.Disposition) string {
	if d == lease.Free || d == lease.AtCapacity || d == lease.ExitFull {
		return healthy
	}
	return d.String()
}

func (s *Server) wireProxy(p *lease.ProxyStatus) api.Proxy {
	_, server, _, _ := s.proxyURL(p.Proxy)
	out := api.Proxy{
		ID:             p.Proxy.ID,
		Server:         server,
		State:          p.State.String(),
		Reason:         p.Proxy.Reason,
		ExitIP:         addr(p.Proxy.ExitIP),
		Active:         p.Active,
		SharedActive:   p.Shared,
		MaxLeases:      p.Limit,
		Auth:           p.Proxy.Auth,
		Tags:           p.Proxy.Tags,
		Attributes:     p.Proxy.Attributes,
		CoolingSeconds: seconds(p.CoolingFor),
		BlockedTargets: p.Blocked,
	}
	if p.Mark.Mark != lease.MarkNone {
		out.Mark = &api.Mark{Mark: string(p.Mark.Mark), By: p.Mark.By, Reason: p.Mark.Reason, At: p.Mark.At}
	}
	return out
}

func wireCooldown(c *lease.Cooldown) api.Cooldown {
	return api.Cooldown{
		Exit:             c.Exit,
		Target:           c.Target,
		Proxies:          c.Proxies,
		Strikes:          c.Strikes,
		RemainingSeconds: seconds(c.Remaining),
		Until:            c.Until.UTC(),
	}
}

func wireTarget(p *lease.Place) api.Target {
	return api.Target{
		ID:       p.ID,
		Provider: p.Provider,
		Target:   p.Name,
		Type:     p.Type,
		Node:     p.Node,
		State:    string(p.State),
		Reason:   p.Reason,
		Advice:   p.Advice,
		Facts:    p.Facts,
	}
}

func addr(a netip.Addr) string {
	if !a.IsValid() {
		return ""
	}
	return a.String()
}
