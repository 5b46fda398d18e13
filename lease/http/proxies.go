package http

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"github.com/egress-proxies/egress/lease"
	"github.com/egress-proxies/egress/lease/api"
)

// proxies answers the list as JSON or as text.
func (s *Server) proxies(w http.ResponseWriter, r *http.Request) {
	if !wantsText(r) {
		handle(s, http.StatusOK, s.listProxies).ServeHTTP(w, r)
		return
	}
	if err := s.need(r, ScopeLease); err != nil { // it has the passwords
		s.fail(w, r, err)
		return
	}
	list, err := s.selected(r)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	var b strings.Builder
	for i := range list {
		if proxyState(list[i].State) == healthy {
			full, _, _, _ := s.proxyURL(list[i].Proxy)
			b.WriteString(full)
			b.WriteByte('\n')
		}
	}
	_, _ = w.Write([]byte(b.String()))
}

// wantsText is true for ?format=txt, and for clients that accept text and not
// JSON.
func wantsText(r *http.Request) bool {
	switch r.URL.Query().Get("format") {
	case "txt":
		return true
	case "json":
		return false
	}
	return strings.HasPrefix(r.Header.Get("Accept"), "text/plain")
}

func (s *Server) listProxies(r *http.Request, _ none) (api.Proxies, error) {
	if f := r.URL.Query().Get("format"); f != "" && f != "json" {
		return api.Proxies{}, &lease.FieldError{Field: "format", Value: f, Pos: -1, Want: "want json or txt"}
	}
	page, err := pageOf(r)
	if err != nil {
		return api.Proxies{}, err
	}
	list, err := s.selected(r)
	if err != nil {
		return api.Proxies{}, err
	}
	list, next := cut(list, page, func(p lease.ProxyStatus) string { return p.Proxy.ID })
	out := api.Proxies{Proxies: make([]api.Proxy, len(list)), Next: next}
	for i := range list {
		out.Proxies[i] = s.wireProxy(&list[i])
	}
	return out, nil
}

// selected are the proxies that ?selector= chooses.
func (s *Server) selected(r *http.Request) ([]lease.ProxyStatus, error) {
	selector, err := lease.ParseSelector(r.URL.Query().Get("selector"))
	if err != nil {
		return nil, err
	}
	return s.Service.Proxies(r.Context(), selector)
}

// mark makes the handler of freeze, drain and unfreeze.
func (s *Server) mark(m lease.Mark) func(*http.Request, api.MarkRequest) (api.Proxy, error) {
	return func(r *http.Request, in api.MarkRequest) (api.Proxy, error) {
		info := lease.MarkInfo{Mark: m, By: tokenName(r), Reason: in.Reason}
		status, err := s.Service.Mark(r.Context(), r.PathValue("id"), info)
		if err != nil {
			return api.Proxy{}, err
		}
		return s.wireProxy(&status), nil
	}
}

// page is a part of a list.
type page struct {
	after string
	limit int
}

// maxPage bounds a page: 1000 proxies are some 800 KB of JSON.
const maxPage = 1000

// pageOf reads ?after= and ?limit=.
func pageOf(r *http.Request) (page, error) {
	query := r.URL.Query()
	p := page{after: query.Get("after"), limit: maxPage}
	if text := query.Get("limit"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 || n > maxPage {
			return page{}, &lease.FieldError{Field: "limit", Value: text, Pos: -1, Want: fmt.Sprintf("want 1 to %d", maxPage)}
		}
		p.limit = n
	}
	return p, nil
}

// cut takes the page out of a list that is sorted by id. next is the cursor of
// the page after it.
func cut[T any](list []T, p page, id func(T) string) (part []T, next string) {
	start := 0
	for p.after != "" && start < len(list) && id(list[start]) <= p.after {
		start++
	}
	list = list[start:]
	if len(list) <= p.limit {
		return list, ""
	}
	return list[:p.limit], id(list[p.limit-1])
}
