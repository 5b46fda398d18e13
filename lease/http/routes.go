package http

import (
	"net/http"

	"github.com/egress-proxies/egress/lease"
	"github.com/egress-proxies/egress/lease/api"
)

// route is a path of the API. The OpenAPI document is made of the same table
// that the handlers are, so that they can't disagree.
type route struct {
	method, path string
	scope        Scope
	summary      string
	query        []parameter
	// in and out are zero values of the bodies; nil for none.
	in, out any
	status  int
	handler http.Handler
	// codes are the problems that this path has beyond those of all paths.
	codes []api.Code
}

// parameter is a parameter of the query.
type parameter struct{ name, text string }

var (
	pages    = []parameter{{"after", "Cursor: the field next of the page before."}, {"limit", "Size of a page, 1 to 1000."}}
	selects  = parameter{"selector", "Restricts the proxies."}
	lookUps  = []api.Code{api.CodeUnknownLease, api.CodeEnded}
	refusals = []api.Code{api.CodeNoCapacity, api.CodeNoMatch}
)

// table is every path of the API.
func (s *Server) table() []route {
	mark := func(path, summary string, m lease.Mark) route {
		return route{"POST", path, ScopeAdmin, summary, nil, api.MarkRequest{}, api.Proxy{}, 200,
			handle(s, http.StatusOK, s.mark(m)), []api.Code{api.CodeUnknownProxy}}
	}
	return []route{
		{"POST", api.PathLeases, ScopeLease, "Acquire leases.", nil, api.Acquire{}, api.Leases{}, 201,
			handle(s, http.StatusCreated, s.acquire), append([]api.Code{api.CodeSessionEnded, api.CodeKeyReused, api.CodeQueueFull}, refusals...)},
		{"GET", api.PathLeases, ScopeRead, "List the leases that are held, without passwords.", pages, nil, api.Leases{}, 200,
			handle(s, http.StatusOK, s.listLeases), nil},
		{"GET", api.PathLease, ScopeRead, "One lease, without password.", nil, nil, api.Lease{}, 200,
			handle(s, http.StatusOK, s.getLease), lookUps},
		{"DELETE", api.PathLease, ScopeLease, "Release a lease; one that has ended is no error.", nil, nil, nil, 204,
			handle(s, http.StatusNoContent, s.release), nil},
		{"POST", api.PathRenew, ScopeLease, "Make a lease last longer.", nil, api.Renew{}, api.Lease{}, 200,
			handle(s, http.StatusOK, s.renew), append(refusals, lookUps...)},
		{"POST", api.PathReport, ScopeLease, "Say how the leased proxy did.", nil, api.Report{}, api.Reported{}, 200,
			handle(s, http.StatusOK, s.report), lookUps},
		{"GET", api.PathProxies, ScopeRead, "List the proxies; as text, with passwords, with the scope lease.",
			append([]parameter{selects, {"format", "json or txt."}}, pages...), nil, api.Proxies{}, 200, http.HandlerFunc(s.proxies), nil},
		mark(api.PathFreeze, "Stop new leases on a proxy.", lease.MarkFreeze),
		mark(api.PathDrain, "Stop new leases and renewals on a proxy.", lease.MarkDrain),
		mark(api.PathUnfreeze, "Let a proxy be leased again.", lease.MarkNone),
		{"GET", api.PathCooldowns, ScopeRead, "List the exits that cool.", pages, nil, api.Cooldowns{}, 200,
			handle(s, http.StatusOK, s.cooldowns), nil},
		{"GET", api.PathTargets, ScopeRead, "List where proxies are launched, and what room is there.", pages, nil, api.Targets{}, 200,
			handle(s, http.StatusOK, s.listTargets), nil},
		{"GET", api.PathEvents, ScopeRead, "Changes as server-sent events, whose data is an Event.", nil, nil, nil, 200,
			http.HandlerFunc(s.events), nil},
	}
}
