// Package http serves the lease service: handlers, authentication, limits and
// the only map from errors to statuses.
package http

import (
	"net/http"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/egress-proxies/egress/lease"
	"github.com/egress-proxies/egress/lease/api"
)

// Config makes a Server.
type Config struct {
	// Service decides. Required.
	Service *lease.Service
	// Credentials gives the user and the password of a name; nil knows none.
	Credentials func(name string) (username, password string, ok bool)
	// Tokens knows the bearer tokens; nil lets everybody do everything.
	Tokens *Tokens
	// Metrics answers /metrics; nil is 404.
	Metrics http.Handler
	// Forward passes the requests of the API on while another process leads; nil
	// answers "no leader". Its fields Local and Leading are set by New.
	Forward *Forwarder
	// NotReady says why nothing can be granted yet, beyond what Service says;
	// nil, and empty, is that nothing is missing.
	NotReady func() string
	// Rate is how many requests a second each token, or each address without
	// tokens, may make; 0 is unlimited.
	Rate float64
	// Logger gets the access log at level info; silent when nil.
	Logger hclog.Logger
	// Version is told in the Server header; may be empty.
	Version string
}

// Server is an http.Handler for the whole service.
type Server struct {
	Config
	mux      *http.ServeMux
	handler  http.Handler
	limits   *limiter
	etagBase string
	// closing is closed when the process ends.
	closing   chan struct{}
	closeOnce sync.Once
}

// New makes a server.
func New(c Config) *Server {
	if c.Logger == nil {
		c.Logger = hclog.NewNullLogger()
	}
	if c.Credentials == nil {
		c.Credentials = func(string) (string, string, bool) { return "", "", false }
	}
	s := &Server{Config: c, mux: http.NewServeMux(), limits: newLimiter(c.Rate), closing: make(chan struct{})}
	s.etagBase = newRequestID()
	if f := c.Forward; f != nil {
		f.Local, f.Leading = s.mux, c.Service.Leading
	}
	s.routes()
	s.handler = s.log(s.recover(s.local(http.NewCrossOriginProtection().Handler(s.mux))))
	return s
}

// ServeHTTP answers one request.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.handler.ServeHTTP(w, r) }

// routes adds every path: those of the API from its table, the others here.
func (s *Server) routes() {
	table := s.table()
	for _, route := range table {
		s.mux.Handle(route.method+" "+route.path, s.authorize(route.scope, s.lead(route.handler)))
	}
	document := openAPI(table)
	s.mux.HandleFunc("GET "+api.PathOpenAPI, func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, http.StatusOK, document)
	})
	s.mux.HandleFunc("GET "+api.PathHealth, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		_, _ = w.Write([]byte("ok\n"))
	})
	s.mux.HandleFunc("GET "+api.PathReady, s.ready)
	if s.Metrics != nil {
		s.mux.Handle("GET "+api.PathMetrics, s.Metrics)
	}
	s.page()
	s.mux.HandleFunc("/", s.unknown)
}

// lead passes requests on while another process leads.
func (s *Server) lead(h http.Handler) http.Handler {
	if s.Forward == nil {
		return h
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if s.Service.Leading() {
			h.ServeHTTP(w, r)
			return
		}
		s.Forward.serve(s, w, r)
	})
}

// ready answers 200 when leases can be granted, by this process or through it:
// also during a change of the leader, which requests wait for. Otherwise all
// replicas would leave Consul at once, and clients would find none.
func (s *Server) ready(w http.ResponseWriter, _ *http.Request) {
	answer := api.Ready{Role: "follower"}
	if s.Service.Leading() {
		answer.Role = "leader"
	}
	if s.Forward != nil {
		answer.Leader, _ = s.Forward.Leader()
	}
	switch {
	case !s.Service.Ready():
		answer.Reason = lease.ErrNotReady.Error()
		if s.NotReady != nil {
			if why := s.NotReady(); why != "" {
				answer.Reason += ": " + why
			}
		}
	case answer.Role == "follower" && (s.Forward == nil || answer.Leader == "" || answer.Leader == s.Forward.Self):
		answer.Reason = lease.ErrNoLeader.Error()
		answer.Ready = s.Forward != nil && s.Forward.Absent != nil && s.Forward.Absent() < s.Forward.Patience
	default:
		answer.Ready = true
	}
	status := http.StatusOK
	if !answer.Ready {
		status = http.StatusServiceUnavailable
		w.Header().Set("Retry-After", "1")
	}
	writeJSON(w, status, answer)
}

// unknown answers paths that do not exist, and methods that a path hasn't.
func (s *Server) unknown(w http.ResponseWriter, r *http.Request) {
	for _, method := range []string{"GET", "POST", "DELETE"} {
		probe := *r
		probe.Method = method
		if _, pattern := s.mux.Handler(&probe); pattern != "/" && pattern != "" && method != r.Method {
			w.Header().Add("Allow", method)
		}
	}
	if w.Header().Get("Allow") != "" {
		s.fail(w, r, errMethod)
		return
	}
	s.fail(w, r, errNotFound)
}

// seconds is the duration in seconds, to the millisecond.
func seconds(d time.Duration) float64 { return float64(d.Milliseconds()) / 1000 }
