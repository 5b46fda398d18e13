package forward

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"
)

// Server is one proxy.
type Server struct {
	config Config
	auth   *authenticator
	dialer *dialer
	plain  *plain
	pipes  *pipePool
	access *accessLog
	http   *http.Server

	mu       sync.Mutex // guards what follows
	tunnels  map[*tunnel]struct{}
	stopping bool
	running  sync.WaitGroup // tunnels; Add is called with mu held
}

// New makes a server that writes its access log to out. It reads the
// credentials file.
func New(c Config, out io.Writer) (*Server, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	c = c.withDefaults()
	auth, err := newAuthenticator(c)
	if err != nil {
		return nil, err
	}
	s := &Server{
		config:  c,
		auth:    auth,
		dialer:  newDialer(c, newOwnAddresses()),
		pipes:   newPipePool(),
		access:  newAccessLog(c.AccessLog, out),
		tunnels: make(map[*tunnel]struct{}),
	}
	s.plain = newPlain(c, s.dialer)
	s.http = &http.Server{
		Handler:                      s,
		DisableGeneralOptionsHandler: true, // OPTIONS * is the target's to answer
		ReadHeaderTimeout:            30 * time.Second,
		IdleTimeout:                  2 * time.Minute,
		MaxHeaderBytes:               c.MaxHeaderBytes,
		ErrorLog:                     log.New(discard{}, "", 0), // malformed requests are the client's affair
	}
	return s, nil
}

// Listen opens the configured address.
func (s *Server) Listen() (net.Listener, error) {
	if s.config.Bind.IsValid() {
		// A source address that is not the node's would fail at every request.
		probe, err := net.Listen("tcp", net.JoinHostPort(s.config.Bind.String(), "0"))
		if err != nil {
			return nil, fmt.Errorf("bind %s: not usable as a source address: %w", s.config.Bind, err)
		}
		if err := probe.Close(); err != nil {
			return nil, err
		}
	}
	return net.Listen("tcp", s.config.Listen)
}

// Serve accepts connections until Shutdown. It always closes the listener.
func (s *Server) Serve(listener net.Listener) error {
	err := s.http.Serve(listener)
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

// Reload reads the credentials file again; on an error the old ones stay.
func (s *Server) Reload() error { return s.auth.reload() }

// Shutdown stops accepting, waits for requests and tunnels to finish, and ends
// them by force when ctx ends.
func (s *Server) Shutdown(ctx context.Context) {
	s.mu.Lock()
	s.stopping = true
	s.mu.Unlock()
	finished := make(chan struct{})
	go func() {
		defer close(finished)
		s.running.Wait()
	}()
	err := s.http.Shutdown(ctx)
	select {
	case <-finished:
	case <-ctx.Done():
	}
	s.mu.Lock()
	for t := range s.tunnels {
		t.close(errShutdown)
	}
	s.mu.Unlock()
	<-finished
	if err != nil {
		_ = s.http.Close() // closes connections; what they say about it is of no use
	}
	s.plain.close()
	s.pipes.close()
}

// ServeHTTP answers one request. The checks come in the order in which they
// tell least: who may talk to the proxy at all, then credentials, then targets.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	client, _ := netip.ParseAddrPort(r.RemoteAddr)
	e := newEntry(r, client)
	if r.Method == http.MethodConnect {
		s.connect(w, r, e)
		return
	}
	defer s.access.write(e)
	counted := &counter{ResponseWriter: w, entry: e}
	if f, refused := s.refuse(r, client); refused {
		s.answer(counted, e, f)
		return
	}
	if f, bad := checkAbsolute(r); bad {
		s.answer(counted, e, f)
		return
	}
	if s.config.MaxDuration > 0 {
		ctx, cancel := context.WithTimeout(r.Context(), s.config.MaxDuration)
		defer cancel()
		r = r.WithContext(ctx)
	}
	if r.Body != nil && r.Body != http.NoBody {
		r.Body = &countedBody{ReadCloser: r.Body, entry: e}
	}
	if f, failed := s.plain.serve(counted, r); failed {
		s.answer(counted, e, f)
	}
}

// answer tells the client and the access log about a failure.
func (s *Server) answer(w http.ResponseWriter, e *entry, f failure) {
	if f.status == http.StatusProxyAuthRequired {
		w.Header().Set("Proxy-Authenticate", `Basic realm="egress", charset="UTF-8"`)
	}
	e.fail(f)
	if f.status != statusClientGone {
		f.write(w)
	}
}

// refuse says whether the client may use the proxy.
func (s *Server) refuse(r *http.Request, client netip.AddrPort) (failure, bool) {
	from := client.Addr().WithZone("").Unmap()
	local, _ := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	if !contains(s.config.AllowClients, from) && from != ipOf(local) {
		return failure{
			status: http.StatusForbidden, kind: kindDenied,
			message: fmt.Sprintf("client %s is not in an allowed network", from),
		}, true
	}
	if !s.auth.check(r.Header) {
		return failure{
			status: http.StatusProxyAuthRequired, kind: kindDenied,
			message: "this proxy wants a username and a password",
		}, true
	}
	return failure{}, false
}

// checkAbsolute accepts plain http in absolute form and nothing else.
func checkAbsolute(r *http.Request) (failure, bool) {
	bad := func(message string) (failure, bool) {
		return failure{status: http.StatusBadRequest, kind: kindBadRequest, message: message}, true
	}
	switch {
	case !r.URL.IsAbs():
		return bad("this is a proxy: want CONNECT HOST:PORT or an absolute http:// URL")
	case r.URL.Scheme != "http":
		return bad(fmt.Sprintf("scheme %q: want http, or CONNECT for anything else", r.URL.Scheme))
	case r.URL.User != nil:
		return bad("credentials in the URL: want them in the Authorization header")
	}
	if err := checkHost(r.URL.Hostname()); err != nil {
		return bad(err.Error())
	}
	if text := r.URL.Port(); text != "" {
		if _, err := parsePort(text); err != nil {
			return bad(err.Error() + ": want a number from 1 to 65535")
		}
	}
	return failure{}, false
}
