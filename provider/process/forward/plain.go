package forward

import (
	"context"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"sync"
	"time"
)

// newPlain makes the handler of http in absolute form. Framing is not passed
// through: a request is parsed, and written anew, so that client and target
// can't disagree about where it ends.
func newPlain(c Config, dial *dialer) (*httputil.ReverseProxy, *http.Transport) {
	transport := &http.Transport{
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
	}
	return &httputil.ReverseProxy{
		Transport:  transport,
		Rewrite:    rewrite,
		BufferPool: &buffers{},
		ErrorLog:   log.New(discard{}, "", 0), // every failure is in the access log
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
			f := failureOf(r.URL.Host, err)
			entryOf(r.Context()).fail(f)
			if f.status != statusClientGone {
				f.write(w)
			}
		},
	}, transport
}

// rewrite makes the outgoing request. ReverseProxy has removed the hop-by-hop
// headers, those that Connection names among them, and the credentials for the
// proxy. It also takes the X-Forwarded headers away, which are the client's own
// affair: a forward proxy adds none and removes none.
func rewrite(r *httputil.ProxyRequest) {
	for _, name := range []string{"Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto"} {
		if values, ok := r.In.Header[name]; ok {
			r.Out.Header[name] = values
		}
	}
}

// idleConn is an upstream connection that fails when nothing moves for too
// long.
type idleConn struct {
	net.Conn
	idle time.Duration
}

func (c *idleConn) Read(p []byte) (int, error) {
	if err := c.SetReadDeadline(time.Now().Add(c.idle)); err != nil {
		return 0, err
	}
	return c.Conn.Read(p)
}

func (c *idleConn) Write(p []byte) (int, error) {
	if err := c.SetWriteDeadline(time.Now().Add(c.idle)); err != nil {
		return 0, err
	}
	return c.Conn.Write(p)
}

// buffers are reused between responses.
type buffers struct{ pool sync.Pool }

func (b *buffers) Get() []byte {
	if buffer, ok := b.pool.Get().(*[]byte); ok {
		return *buffer
	}
	return make([]byte, 64<<10)
}

func (b *buffers) Put(buffer []byte) { b.pool.Put(&buffer) }

// discard is a log that nobody reads.
type discard struct{}

func (discard) Write(p []byte) (int, error) { return len(p), nil }
