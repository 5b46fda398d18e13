package http

import (
	"net/http"
	"time"

	"github.com/egress-proxies/egress/lease"
	"github.com/egress-proxies/egress/lease/api"
)

func (s *Server) acquire(r *http.Request, in api.Acquire) (api.Leases, error) {
	request, err := s.Service.Rules().NewRequest(lease.Ask{
		Selector: in.Selector, Target: in.Target, TTL: time.Duration(in.TTL), Session: in.Session,
		Mode: in.SessionMode, Count: in.Count, Partial: in.Partial, Client: in.Client,
		Key: r.Header.Get(api.HeaderKey), Wait: time.Duration(in.Wait),
	})
	if err != nil {
		return api.Leases{}, err
	}
	leases, err := s.Service.Acquire(r.Context(), request)
	if err != nil {
		return api.Leases{}, err
	}
	return api.Leases{Leases: s.wireLeases(leases)}, nil
}

func (s *Server) renew(r *http.Request, in api.Renew) (api.Lease, error) {
	l, err := s.Service.Renew(r.Context(), r.PathValue("id"), time.Duration(in.TTL))
	if err != nil {
		return api.Lease{}, err
	}
	return s.wireLease(&l), nil
}

func (s *Server) report(r *http.Request, in api.Report) (api.Reported, error) {
	c, err := s.Service.Report(r.Context(), r.PathValue("id"), lease.Result(in.Result), in.Target)
	if err != nil || c == nil {
		return api.Reported{}, err
	}
	told := wireCooldown(c)
	return api.Reported{Cooldown: &told}, nil
}

func (s *Server) release(r *http.Request, _ none) (none, error) {
	return none{}, s.Service.Release(r.Context(), r.PathValue("id"))
}

func (s *Server) getLease(r *http.Request, _ none) (api.Lease, error) {
	l, err := s.Service.Lease(r.Context(), r.PathValue("id"))
	if err != nil {
		return api.Lease{}, err
	}
	return *withoutPassword(s.wireLease(&l)), nil
}

func (s *Server) listLeases(r *http.Request, _ none) (api.Leases, error) {
	page, err := pageOf(r)
	if err != nil {
		return api.Leases{}, err
	}
	list, err := s.Service.Leases(r.Context())
	if err != nil {
		return api.Leases{}, err
	}
	list, next := cut(list, page, func(l lease.Lease) string { return l.ID })
	out := api.Leases{Leases: s.wireLeases(list), Next: next}
	for i := range out.Leases {
		out.Leases[i] = *withoutPassword(out.Leases[i])
	}
	return out, nil
}

func (s *Server) cooldowns(r *http.Request, _ none) (api.Cooldowns, error) {
	page, err := pageOf(r)
	if err != nil {
		return api.Cooldowns{}, err
	}
	list, err := s.Service.Cooldowns(r.Context())
	if err != nil {
		return api.Cooldowns{}, err
	}
	// The list is sorted by exit and then by target, and so are these texts.
	list, next := cut(list, page, func(c lease.Cooldown) string { return c.Exit + " " + c.Target })
	out := api.Cooldowns{Cooldowns: make([]api.Cooldown, len(list)), Next: next}
	for i := range list {
		out.Cooldowns[i] = wireCooldown(&list[i])
	}
	return out, nil
}
