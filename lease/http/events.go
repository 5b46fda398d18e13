package http

import (
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"github.com/egress-proxies/egress/lease"
	"github.com/egress-proxies/egress/lease/api"
)

const (
	// eventBuffer is how far a reader may fall behind: a change of every proxy
	// of a large pool.
	eventBuffer = 4096
	// eventPing keeps proxies between here and the reader from closing an idle
	// stream; many do so after a minute.
	eventPing = 15 * time.Second
)

// events streams changes as server-sent events until the client goes, the
// process ends or the client falls behind. A lease in an event has no password.
func (s *Server) events(w http.ResponseWriter, r *http.Request) {
	flush := http.NewResponseController(w)
	stream := s.Service.Subscribe(r.Context(), eventBuffer)
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(http.StatusOK)
	// Whoever reads "hello" lists now, and misses nothing.
	if _, err := w.Write([]byte("retry: 1000\nevent: hello\ndata: {}\n\n")); err != nil {
		return
	}
	ping := time.NewTicker(eventPing)
	defer ping.Stop()
	for {
		if err := flush.Flush(); err != nil {
			return
		}
		select {
		case <-s.closing:
			return
		case <-ping.C:
			if !s.Service.Leading() {
				return // the new leader has the events
			}
			if _, err := w.Write([]byte(": ping\n\n")); err != nil {
				return
			}
		case e, ok := <-stream:
			if !ok {
				return
			}
			data, err := json.Marshal(s.wireEvent(&e))
			if err != nil {
				return
			}
			if _, err := fmt.Fprintf(w, "event: %s\ndata: %s\n\n", e.Kind, data); err != nil {
				return
			}
		}
	}
}

func (s *Server) wireEvent(e *lease.Event) api.Event {
	out := api.Event{Reason: string(e.Reason)}
	if e.Lease != nil {
		l := s.wireLease(e.Lease)
		out.Lease = withoutPassword(l)
	}
	if e.Proxy != nil {
		p := s.wireProxy(e.Proxy)
		out.Proxy = &p
	}
	if e.Place != nil {
		t := wireTarget(e.Place)
		out.Target = &t
	}
	if e.Cooldown != nil {
		c := wireCooldown(e.Cooldown)
		out.Cooldown = &c
	}
	return out
}

// withoutPassword is the lease for eyes that did not acquire it.
func withoutPassword(l api.Lease) *api.Lease {
	l.URL, l.Username, l.Password = l.Server, "", ""
	return &l
}

// Close ends the streams of events, which would otherwise hold a shutdown up.
func (s *Server) Close() { s.closeOnce.Do(func() { close(s.closing) }) }
