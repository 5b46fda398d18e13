package forward

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
)

// connect answers a CONNECT request. The access log gets its line when the
// tunnel has ended.
func (s *Server) connect(w http.ResponseWriter, r *http.Request, e *entry) {
	upstream, f := s.open(r, e)
	if upstream == nil {
		s.answer(w, e, f)
		s.access.write(e)
		return
	}
	t, buffered, err := s.takeOver(w, upstream)
	if err != nil {
		_ = upstream.Close()
		e.fail(failure{status: http.StatusInternalServerError, kind: kindInternal, message: err.Error()})
		s.access.write(e)
		return
	}
	// The handler returns and its goroutine ends: it would hold the buffers of
	// the HTTP server for as long as the tunnel lasts.
	go s.carry(t, buffered, e)
}

// open checks a CONNECT request and connects to its target.
func (s *Server) open(r *http.Request, e *entry) (*net.TCPConn, failure) {
	client, _ := netip.ParseAddrPort(r.RemoteAddr)
	if f, refused := s.refuse(r, client); refused {
		return nil, f
	}
	// The request line's authority, not the Host header, is the target.
	host, port, err := parseTarget(r.RequestURI)
	if err != nil {
		return nil, failure{status: http.StatusBadRequest, kind: kindBadRequest, message: err.Error()}
	}
	if r.ContentLength > 0 || len(r.TransferEncoding) > 0 {
		// Its bytes could be read as the body or as the tunnel's first ones.
		return nil, failure{status: http.StatusBadRequest, kind: kindBadRequest, message: "CONNECT with a body has no meaning (RFC 9110, section 9.3.6)"}
	}
	e.target = r.RequestURI
	ctx, cancel := context.WithTimeout(r.Context(), s.config.DialTimeout)
	defer cancel()
	upstream, err := s.dialer.dial(ctx, host, port)
	if err != nil {
		return nil, failureOf(r.RequestURI, err)
	}
	return upstream, failure{}
}

// takeOver takes the client's connection away from the HTTP server and counts
// the tunnel as running. buffered is what the client sent right behind its
// request.
func (s *Server) takeOver(w http.ResponseWriter, upstream *net.TCPConn) (t *tunnel, buffered []byte, err error) {
	conn, buffer, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return nil, nil, err
	}
	client, ok := conn.(*net.TCPConn)
	if !ok {
		_ = conn.Close()
		return nil, nil, fmt.Errorf("client connection of type %T: want TCP", conn)
	}
	if buffered, err = rest(buffer.Reader); err != nil {
		_ = conn.Close()
		return nil, nil, err
	}
	t = newTunnel(client, upstream, s.pipes)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopping {
		_ = conn.Close()
		return nil, nil, errShutdown
	}
	s.tunnels[t] = struct{}{}
	s.running.Add(1)
	return t, buffered, nil
}

// rest is a copy of what a reader has buffered.
func rest(reader *bufio.Reader) ([]byte, error) {
	buffered, err := reader.Peek(reader.Buffered())
	return append([]byte(nil), buffered...), err
}

const established = "HTTP/1.1 200 Connection established\r\n\r\n"

// carry runs a tunnel to its end.
func (s *Server) carry(t *tunnel, buffered []byte, e *entry) {
	defer func() {
		s.mu.Lock()
		delete(s.tunnels, t)
		s.mu.Unlock()
		s.running.Done()
	}()
	e.status = http.StatusOK
	_, err := t.client.Write([]byte(established))
	if err == nil && len(buffered) > 0 {
		_, err = t.upstream.Write(buffered)
		t.sent.Add(int64(len(buffered)))
	}
	if err != nil {
		t.close(nil)
	} else if cause := t.run(s.config.IdleTimeout, s.config.MaxDuration); cause != nil {
		e.err = cause.Error()
	}
	e.sent, e.received = t.sent.Load(), t.received.Load()
	s.access.write(e)
}
