// Package computetest is a stand-in for the part of the Compute Engine API that
// the provider uses: it keeps state, pages, delays operations, fails on order
// and checks every request that it gets.
//
// What it does is what Google's reference says; where that is silent, it is the
// less convenient of the likely answers. What only a real project can prove is
// in docs/gcp.md.
package computetest

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"time"
)

// Config says how the stand-in behaves. The zero value of each field but
// Project is usable.
type Config struct {
	// Project is the only project that there is.
	Project string
	// Zones that exist; empty: three of europe-west1 and one of us-east1.
	Zones []string
	// Delay is how long an operation takes; 0 is done with the call that waits.
	Delay time.Duration
	// PageSize bounds the pages of lists; 0 is 500.
	PageSize int
	// Limits are the quotas of each region; absent ones are 1000.
	Limits map[string]float64
	// Backend runs what machines stand for; nil runs nothing.
	Backend Backend
}

// Backend gives machines a life.
type Backend interface {
	// Start starts what the machine stands for, and gives the external address
	// on which it is reached. It must not call the Server.
	Start(m Machine) (address string, err error)
	// Stop ends it and waits for the end.
	Stop(name string)
}

// Server is the stand-in. Its methods are safe for concurrent use.
type Server struct {
	config Config
	http   *httptest.Server
	key    *key

	mu         sync.Mutex // guards what follows
	machines   map[place]*machine
	disks      map[place]*disk
	operations map[string]*operation
	requests   map[string]string // request id -> operation
	faults     []*Fault
	calls      []string
	problems   []string
	silent     []string // zones that can't be listed
	denied     []string // permissions that the account lacks
	tokens     map[string]bool
	lastID     uint64
	stalled    chan struct{} // closed when the server ends
}

// place is a zone and a name.
type place struct{ zone, name string }

// Start starts a stand-in on a free port of the loopback.
func Start(config Config) (*Server, error) {
	if len(config.Zones) == 0 {
		config.Zones = []string{"europe-west1-b", "europe-west1-c", "europe-west1-d", "us-east1-b"}
	}
	if config.PageSize == 0 {
		config.PageSize = 500
	}
	key, err := newKey()
	if err != nil {
		return nil, err
	}
	s := &Server{
		config: config, key: key,
		machines: map[place]*machine{}, disks: map[place]*disk{}, operations: map[string]*operation{},
		requests: map[string]string{}, tokens: map[string]bool{}, stalled: make(chan struct{}), lastID: 1 << 60,
	}
	s.http = httptest.NewServer(s.routes())
	return s, nil
}

// Close ends the stand-in and what its machines stand for.
func (s *Server) Close() {
	close(s.stalled)
	s.http.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, m := range s.machines {
		s.halt(m)
	}
}

// URL is the value of the option endpoint.
func (s *Server) URL() string { return s.http.URL }

// Calls gives the names of the calls since the last time, in their order:
// "instances.insert".
func (s *Server) Calls() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	calls := s.calls
	s.calls = nil
	return calls
}

// Problems are the requests that Google would not have understood, or that
// cost more than they need.
func (s *Server) Problems() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.problems)
}

// handler answers one call; the Server's lock is held. It gives what is to be
// encoded as JSON, or an *apiError.
type handler func(r *http.Request) (any, *apiError)

func (s *Server) routes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /token", s.token)
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		s.refuse(w, r, "an unknown call")
	})
	for pattern, route := range map[string]struct {
		name    string
		handler handler
	}{
		"GET /compute/v1/projects/{project}/aggregated/instances":                     {"instances.aggregatedList", s.listMachines},
		"GET /compute/v1/projects/{project}/aggregated/disks":                         {"disks.aggregatedList", s.listDisks},
		"POST /compute/v1/projects/{project}/zones/{zone}/instances":                  {"instances.insert", s.insert},
		"GET /compute/v1/projects/{project}/zones/{zone}/instances/{name}":            {"instances.get", s.getMachine},
		"DELETE /compute/v1/projects/{project}/zones/{zone}/instances/{name}":         {"instances.delete", s.deleteMachine},
		"POST /compute/v1/projects/{project}/zones/{zone}/instances/{name}/stop":      {"instances.stop", s.stopMachine},
		"GET /compute/v1/projects/{project}/zones/{zone}/instances/{name}/serialPort": {"instances.getSerialPortOutput", s.serial},
		"GET /compute/v1/projects/{project}/zones/{zone}/disks/{name}":                {"disks.get", s.getDisk},
		"DELETE /compute/v1/projects/{project}/zones/{zone}/disks/{name}":             {"disks.delete", s.deleteDisk},
		"GET /compute/v1/projects/{project}/zones/{zone}/operations":                  {"zoneOperations.list", s.listOperations},
		"POST /compute/v1/projects/{project}/zones/{zone}/operations/{name}/wait":     {"zoneOperations.wait", s.waitOperation},
		"GET /compute/v1/projects/{project}/regions/{region}":                         {"regions.get", s.getRegion},
		"POST /v1/projects/{call}":                                                    {"projects.testIamPermissions", s.testPermissions},
	} {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) { s.serve(w, r, route.name, route.handler) })
	}
	return mux
}

// serve checks a request, lets a fault have its way, and answers.
func (s *Server) serve(w http.ResponseWriter, r *http.Request, name string, handle handler) {
	s.mu.Lock()
	s.calls = append(s.calls, name)
	s.settle(time.Now())
	fault := s.fault(name, r)
	answer, failure := any(nil), s.check(r, name)
	if failure == nil && (fault == nil || fault.After || fault.Operation != nil) {
		answer, failure = handle(r)
		if fault != nil && fault.Operation != nil {
			s.spoil(answer, fault.Operation)
		}
	}
	wait := time.Duration(0)
	if op, ok := answer.(*operation); ok && name == "zoneOperations.wait" {
		wait = time.Until(op.due)
	}
	s.mu.Unlock()
	if wait > 0 {
		answer = s.held(r, answer.(*operation), wait)
	}
	if fault != nil && fault.Operation == nil {
		s.fail(w, r, fault, answer)
		return
	}
	if failure != nil {
		failure.write(w)
		return
	}
	s.mu.Lock()
	body, err := json.Marshal(answer)
	s.mu.Unlock()
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json; charset=UTF-8")
	_, _ = w.Write(body)
}

// held waits with the answer until the operation is done, as Google does.
func (s *Server) held(r *http.Request, op *operation, wait time.Duration) *operation {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-r.Context().Done():
	case <-s.stalled:
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.settle(time.Now())
	return op
}

// check refuses what Google would refuse on any call.
func (s *Server) check(r *http.Request, name string) *apiError {
	token, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	if !ok || !s.tokens[token] {
		return &apiError{Status: 401, Reason: "authError", Message: "Request had invalid authentication credentials."}
	}
	if r.Method == http.MethodPost && r.ContentLength > 0 && !strings.HasPrefix(r.Header.Get("Content-Type"), "application/json") {
		return s.problem("content type %q of %s", r.Header.Get("Content-Type"), name)
	}
	if project := r.PathValue("project"); project != "" && project != s.config.Project {
		return &apiError{Status: 404, Reason: "notFound", Message: fmt.Sprintf("The resource 'projects/%s' was not found", project)}
	}
	if zone := r.PathValue("zone"); zone != "" && !slices.Contains(s.config.Zones, zone) {
		return &apiError{Status: 400, Reason: "invalid", Message: fmt.Sprintf("Invalid value for field 'zone': '%s'. Unknown zone.", zone)}
	}
	if r.Header.Get("X-Egress-Call") != "" {
		return s.problem("%s with a header of our own", name)
	}
	if strings.Contains(name, "aggregatedList") && r.URL.Query().Get("returnPartialSuccess") != "true" {
		return s.problem("%s without partial success", name)
	}
	return nil
}

// problem notes what the stand-in objects to; the caller gets a 400.
func (s *Server) problem(format string, args ...any) *apiError {
	text := fmt.Sprintf(format, args...)
	s.problems = append(s.problems, text)
	return &apiError{Status: 400, Reason: "invalid", Message: text}
}

func (s *Server) refuse(w http.ResponseWriter, r *http.Request, why string) {
	s.mu.Lock()
	failure := s.problem("%s: %s %s", why, r.Method, r.URL.Path)
	s.mu.Unlock()
	failure.write(w)
}

// Silence makes zones impossible to list until it is called again.
func (s *Server) Silence(zones ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.silent = zones
}

// Deny takes permissions from the account.
func (s *Server) Deny(permissions ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.denied = permissions
}

// nextID is an id as Google gives them: larger than a float holds exactly.
func (s *Server) nextID() uint64 {
	s.lastID++
	return s.lastID
}
