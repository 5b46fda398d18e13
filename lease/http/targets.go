package http

import (
	"net/http"

	"github.com/egress-proxies/egress/lease"
	"github.com/egress-proxies/egress/lease/api"
)

func (s *Server) listTargets(r *http.Request, _ none) (api.Targets, error) {
	page, err := pageOf(r)
	if err != nil {
		return api.Targets{}, err
	}
	list, err := s.Service.Places()
	if err != nil {
		return api.Targets{}, err
	}
	list, next := cut(list, page, func(p lease.Place) string { return p.ID })
	out := api.Targets{Targets: make([]api.Target, len(list)), Next: next}
	for i := range list {
		out.Targets[i] = wireTarget(&list[i])
	}
	return out, nil
}
