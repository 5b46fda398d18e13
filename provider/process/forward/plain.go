package forward

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/textproto"
	"strings"
	"sync"
	"time"
)

// plain passes on http in absolute form. Framing is not passed through: a
// request is parsed and written anew by net/http, so that client and target
// can't disagree about where it ends.
//
// It does what httputil.ReverseProxy would, which is made for the other side
// (it takes X-Forwarded headers away and tunnels upgrades), and whose import
// path alone delays the early start of the proxy (see provider/process/early).
type plain struct {
	idle      time.Duration
	transport *http.Transport
	buffers   sync.Pool
}

func newPlain(c Config, dial *dialer) *plain {
	return &plain{idle: c.IdleTimeout, transport: &http.Transport{
		// No Proxy: the environment's proxy settings are not for us.
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			conn, err := dial.DialContext(ctx, network, address)
			if err != nil || c.IdleTimeout == 0 {
				return conn, err
			}
			return &idleConn{Conn: conn, idle: c.IdleTimeout}, nil
		},
		DisableCompression:     true, // the client asks for what it wants
		MaxIdleConns:           512,
		MaxIdleConnsPerHost:    64,
		IdleConnTimeout:        90 * time.Second,
		ExpectContinueTimeout:  time.Second,
		MaxResponseHeaderBytes: 256 << 10,
		WriteBufferSize:        16 << 10,
		ReadBufferSize:         16 << 10,
	}}
}

// serve answers one request with the target's answer, or tells why there is
// none.
func (p *plain) serve(w *counter, r *http.Request) (failure, bool) {
	response, err := p.transport.RoundTrip(outgoing(r))
	if err != nil {
		return failureOf(r.URL.Host, err), true
	}
	defer func() { _ = response.Body.Close() }()
	header := w.Header()
	removeHopByHop(response.Header)
	for name, values := range response.Header {
		header[name] = values
	}
	for _, name := range []string{"Content-Type", "Date"} {
		if _, ok := header[name]; !ok {
			header[name] = nil // or net/http would make one up
		}
	}
	for name := range response.Trailer {
		header.Add("Trailer", name)
	}
	w.WriteHeader(response.StatusCode)
	if err := p.copy(w, response); err != nil {
		// The status is sent: only a cut-off connection tells the client.
		w.entry.err = "cut off: " + err.Error()
		panic(http.ErrAbortHandler)
	}
	for name, values := range response.Trailer {
		header[name] = values
	}
	return failure{}, false
}

// copy passes the body on. A body of unknown length may be a stream of events,
// so each portion is sent at once.
func (p *plain) copy(w *counter, response *http.Response) error {
	buffer, ok := p.buffers.Get().(*[]byte)
	if !ok {
		made := make([]byte, 64<<10)
		buffer = &made
	}
	defer p.buffers.Put(buffer)
	client := http.NewResponseController(w)
	flush := func() error { return nil }
	if response.ContentLength < 0 {
		flush = client.Flush
	}
	extend := func() error { return nil }
	if p.idle > 0 {
		// A client that does not read must not hold the request for ever.
		extend = func() error { return client.SetWriteDeadline(time.Now().Add(p.idle)) }
		defer func() { _ = client.SetWriteDeadline(time.Time{}) }() // the next request's is its own
	}
	for {
		n, err := response.Body.Read(*buffer)
		if n > 0 {
			if err := extend(); err != nil {
				return err
			}
			if _, err := w.Write((*buffer)[:n]); err != nil {
				return err
			}
			if err := flush(); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func (p *plain) close() { p.transport.CloseIdleConnections() }

// outgoing is the request to the target. Nothing is added to it.
func outgoing(r *http.Request) *http.Request {
	out := r.Clone(r.Context())
	out.Close = false
	if r.ContentLength == 0 {
		out.Body = nil
	}
	trailers := hasToken(r.Header["Te"], "trailers")
	removeHopByHop(out.Header)
	if trailers {
		out.Header.Set("Te", "trailers")
	}
	if _, ok := out.Header["User-Agent"]; !ok {
		out.Header.Set("User-Agent", "") // or net/http would send its own
	}
	return out
}

// hopByHop are the headers that belong to one connection (RFC 9110, section
// 7.6.1, and the older ones that are still met). Upgrade is among them: who
// wants another protocol uses CONNECT.
var hopByHop = []string{
	"Connection", "Keep-Alive", "Proxy-Authenticate", "Proxy-Authentication-Info", "Proxy-Authorization",
	"Proxy-Connection", "Te", "Trailer", "Transfer-Encoding", "Upgrade", "Http2-Settings",
}

// removeHopByHop also removes what Connection names.
func removeHopByHop(header http.Header) {
	for _, value := range header["Connection"] {
		for name := range strings.SplitSeq(value, ",") {
			if name = textproto.TrimString(name); name != "" {
				header.Del(name)
			}
		}
	}
	for _, name := range hopByHop {
		header.Del(name)
	}
}

func hasToken(values []string, token string) bool {
	for _, value := range values {
		for part := range strings.SplitSeq(value, ",") {
			if strings.EqualFold(textproto.TrimString(part), token) {
				return true
			}
		}
	}
	return false
}

// idleConn is an upstream connection that fails when nothing moves in either
// direction for too long: an answer is waited for while a long body is sent.
type idleConn struct {
	net.Conn
	idle time.Duration
}

func (c *idleConn) Read(p []byte) (int, error) {
	if err := c.SetDeadline(time.Now().Add(c.idle)); err != nil {
		return 0, err
	}
	return c.Conn.Read(p)
}

func (c *idleConn) Write(p []byte) (int, error) {
	if err := c.SetDeadline(time.Now().Add(c.idle)); err != nil {
		return 0, err
	}
	return c.Conn.Write(p)
}

// discard is a log that nobody reads.
type discard struct{}

func (discard) Write(p []byte) (int, error) { return len(p), nil }
