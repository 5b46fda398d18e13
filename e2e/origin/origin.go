// Package origin is the web site that proxies are tested against: http and
// https with a certificate authority of its own, telling each client who it
// is, and obstructive on demand.
package origin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"sync"
)

// Origin serves the same pages over http and https:
//
//	/             200 and a Page as JSON
//	/ip           200 and the client's address as text
//	/status/403   that status
//	/bytes/1000   that many bytes
//	/gate/NAME    like / once the gate NAME is open, see Hold
type Origin struct {
	// HTTP and HTTPS are the roots: "http://127.0.0.1:4711".
	HTTP, HTTPS string
	// CAFile is the PEM file of the authority that signed the certificate.
	CAFile string

	plain, secure *http.Server
	serving       sync.WaitGroup

	// mu guards gates.
	mu    sync.Mutex
	gates map[string]*gate
}

// Page is what the origin saw of a request.
type Page struct {
	// Client is the address that the request came from, without the port.
	Client string `json:"client"`
	// URL is the request's, as the origin sees it.
	URL string `json:"url"`
	// Secure is true for https.
	Secure bool `json:"secure"`
	// Header is the request's.
	Header http.Header `json:"header"`
}

// Start serves on free loopback ports; the certificate authority is written to
// dir.
func Start(dir string) (*Origin, error) {
	authority, certificate, err := certify()
	if err != nil {
		return nil, err
	}
	o := &Origin{CAFile: filepath.Join(dir, "origin-ca.pem"), gates: map[string]*gate{}}
	if err := os.WriteFile(o.CAFile, authority, 0o644); err != nil {
		return nil, fmt.Errorf("start origin: %w", err)
	}
	o.plain = &http.Server{Handler: o.routes()}
	o.secure = &http.Server{Handler: o.routes(), TLSConfig: certificate, ErrorLog: silent()}
	if o.HTTP, err = o.serve("http", o.plain.Serve); err != nil {
		return nil, err
	}
	serveTLS := func(l net.Listener) error { return o.secure.ServeTLS(l, "", "") }
	if o.HTTPS, err = o.serve("https", serveTLS); err != nil {
		return nil, errors.Join(err, o.Close())
	}
	return o, nil
}

// serve listens and runs one server; it returns its root URL.
func (o *Origin) serve(scheme string, run func(net.Listener) error) (string, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", fmt.Errorf("start origin: %w", err)
	}
	o.serving.Go(func() { _ = run(listener) }) // ErrServerClosed after Close.
	return scheme + "://" + listener.Addr().String(), nil
}

// Close ends both servers and every request, and waits for them.
func (o *Origin) Close() error {
	err := errors.Join(o.plain.Close(), o.secure.Close())
	o.serving.Wait()
	return err
}

func (o *Origin) routes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", page)
	mux.HandleFunc("GET /ip", func(w http.ResponseWriter, r *http.Request) {
		_, _ = fmt.Fprintln(w, client(r))
	})
	mux.HandleFunc("GET /status/{code}", func(w http.ResponseWriter, r *http.Request) {
		code, err := strconv.Atoi(r.PathValue("code"))
		if err != nil || code < 200 || code > 599 {
			http.Error(w, "want a status between 200 and 599", http.StatusBadRequest)
			return
		}
		w.WriteHeader(code)
	})
	mux.HandleFunc("GET /bytes/{n}", func(w http.ResponseWriter, r *http.Request) {
		n, err := strconv.ParseInt(r.PathValue("n"), 10, 64)
		if err != nil || n < 0 {
			http.Error(w, "want a number of bytes", http.StatusBadRequest)
			return
		}
		w.Header().Set("Content-Length", strconv.FormatInt(n, 10))
		chunk := make([]byte, 64<<10)
		for n > 0 {
			written, err := w.Write(chunk[:min(n, int64(len(chunk)))])
			if err != nil {
				return
			}
			n -= int64(written)
		}
	})
	mux.HandleFunc("GET /gate/{name}", func(w http.ResponseWriter, r *http.Request) {
		if o.pass(r.Context(), r.PathValue("name")) {
			page(w, r)
		}
	})
	return mux
}

func page(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(Page{
		Client: client(r),
		URL:    r.URL.String(),
		Secure: r.TLS != nil,
		Header: r.Header,
	})
}

func client(r *http.Request) string {
	host, _, _ := net.SplitHostPort(r.RemoteAddr)
	return host
}

// gate holds requests back.
type gate struct {
	// open is closed when requests may pass.
	open chan struct{}
	// arrived is closed at the first request that had to wait.
	arrived chan struct{}
}

// Hold closes the gate name: requests for /gate/<name> wait until Release, or
// until their client leaves. The channel is closed when the first one waits.
func (o *Origin) Hold(name string) (arrived <-chan struct{}) {
	o.mu.Lock()
	defer o.mu.Unlock()
	g := &gate{open: make(chan struct{}), arrived: make(chan struct{})}
	o.gates[name] = g
	return g.arrived
}

// Release opens the gate name.
func (o *Origin) Release(name string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if g := o.gates[name]; g != nil {
		close(g.open)
		delete(o.gates, name)
	}
}

// pass waits at the gate; false when the client has left.
func (o *Origin) pass(ctx context.Context, name string) bool {
	o.mu.Lock()
	g := o.gates[name]
	if g == nil {
		o.mu.Unlock()
		return true
	}
	select {
	case <-g.arrived:
	default:
		close(g.arrived)
	}
	o.mu.Unlock()
	select {
	case <-g.open:
		return true
	case <-ctx.Done():
		return false
	}
}
