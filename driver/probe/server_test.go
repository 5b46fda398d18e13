package probe

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// acceptor is a proxy that does one thing with each connection.
func acceptor(t testing.TB, address string, handle func(net.Conn)) Proxy {
	t.Helper()
	listener, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	var handlers sync.WaitGroup
	closing := make(chan struct{})
	handlers.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			handlers.Go(func() {
				defer conn.Close()
				stop := closeWith(closing, conn)
				defer stop()
				handle(conn)
			})
		}
	})
	t.Cleanup(func() {
		close(closing)
		listener.Close()
		handlers.Wait()
	})
	addr := listener.Addr().(*net.TCPAddr)
	return Proxy{Host: addr.IP.String(), Port: addr.Port}
}

// closeWith closes conn when the test ends, so that a handler which
// stalls on purpose returns.
func closeWith(closing <-chan struct{}, conn net.Conn) (stop func()) {
	done := make(chan struct{})
	go func() {
		select {
		case <-closing:
			conn.Close()
		case <-done:
		}
	}()
	return func() { close(done) }
}

// request reads one request head.
func request(conn net.Conn) (*http.Request, *bufio.Reader) {
	reader := bufio.NewReader(conn)
	parsed, err := http.ReadRequest(reader)
	if err != nil {
		return nil, reader
	}
	return parsed, reader
}

// says answers each connection's first request with text and hangs up.
func says(text string) func(net.Conn) {
	return func(conn net.Conn) {
		if req, _ := request(conn); req != nil {
			io.WriteString(conn, text)
			hangUp(conn)
		}
	}
}

// stallsAfter answers the first request with text and then waits for the other
// end to give up.
func stallsAfter(text string) func(net.Conn) {
	return func(conn net.Conn) {
		if req, reader := request(conn); req != nil {
			io.WriteString(conn, text)
			io.Copy(io.Discard, reader)
		}
	}
}

// hangUp lets the other end read everything before the connection is gone.
func hangUp(conn net.Conn) {
	conn.(*net.TCPConn).CloseWrite()
	io.Copy(io.Discard, conn)
}

// forwarder is a proxy that works.
type forwarder struct {
	// user and password, when set, are wanted from clients.
	user, password string
	// refuseConnect answers 403 to CONNECT.
	refuseConnect bool

	mu          sync.Mutex
	seen        []*http.Request
	connections int
}

func (f *forwarder) start(t testing.TB, address string) Proxy {
	return acceptor(t, address, f.serve)
}

func (f *forwarder) serve(conn net.Conn) {
	f.mu.Lock()
	f.connections++
	f.mu.Unlock()
	req, _ := request(conn)
	if req == nil {
		return
	}
	f.mu.Lock()
	f.seen = append(f.seen, req)
	f.mu.Unlock()
	check := &http.Request{Header: http.Header{"Authorization": req.Header["Proxy-Authorization"]}}
	user, password, _ := check.BasicAuth()
	switch {
	case user != f.user || password != f.password:
		io.WriteString(conn, "HTTP/1.1 407 "+req.Header.Get("Proxy-Authorization")+"\r\nProxy-Authenticate: Basic\r\nContent-Length: 0\r\n\r\n")
	case req.Method == http.MethodConnect && f.refuseConnect:
		io.WriteString(conn, "HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n")
	case req.Method == http.MethodConnect:
		tunnel(conn, req.Host)
	default:
		req.RequestURI = ""
		req.Header.Del("Proxy-Authorization")
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		var watch sync.WaitGroup
		watch.Go(func() {
			// The client gave up.
			conn.Read(make([]byte, 1))
			cancel()
		})
		defer watch.Wait()
		defer conn.Close()
		transport := &http.Transport{DisableKeepAlives: true}
		response, err := transport.RoundTrip(req.WithContext(ctx))
		if err != nil {
			io.WriteString(conn, "HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n")
			return
		}
		defer response.Body.Close()
		response.Close = true
		response.Write(conn)
	}
}

func tunnel(conn net.Conn, address string) {
	server, err := net.Dial("tcp", address)
	if err != nil {
		io.WriteString(conn, "HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n")
		return
	}
	io.WriteString(conn, "HTTP/1.1 200 OK\r\n\r\n")
	var copies sync.WaitGroup
	copies.Go(func() {
		io.Copy(server, conn)
		server.(*net.TCPConn).CloseWrite()
	})
	io.Copy(conn, server)
	server.Close()
	conn.Close()
	copies.Wait()
}

// origin serves handler over https and http.
type origin struct {
	https, http string
	// caFile trusts the https server.
	caFile string
}

func newOrigin(t testing.TB, handler http.HandlerFunc) origin {
	t.Helper()
	secure := httptest.NewUnstartedServer(handler)
	secure.Config.ErrorLog = quiet
	secure.StartTLS()
	t.Cleanup(secure.Close)
	plain := httptest.NewServer(handler)
	t.Cleanup(plain.Close)
	return origin{https: secure.URL, http: plain.URL, caFile: writePEM(t, secure.Certificate().Raw)}
}

func hello(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "hello") }

func writePEM(t testing.TB, certificates ...[]byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "ca.pem")
	replaceFile(t, path, encodePEM(certificates...))
	return path
}

func encodePEM(certificates ...[]byte) []byte {
	var text strings.Builder
	for _, der := range certificates {
		pem.Encode(&text, &pem.Block{Type: "CERTIFICATE", Bytes: der})
	}
	return []byte(text.String())
}

// replaceFile puts a new file in the place of the old one, as a careful
// administrator does.
func replaceFile(t testing.TB, path string, content []byte) {
	t.Helper()
	if err := os.WriteFile(path+".new", content, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

// selfSigned is a certificate that nobody trusts.
func selfSigned(t testing.TB, from, until time.Time, names ...string) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber:          big.NewInt(1),
		Subject:               pkix.Name{CommonName: "interceptor"},
		NotBefore:             from,
		NotAfter:              until,
		IsCA:                  true,
		BasicConstraintsValid: true,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	for _, name := range names {
		if ip := net.ParseIP(name); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, name)
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// intercepts opens every tunnel and ends its TLS itself.
func intercepts(certificate tls.Certificate) func(net.Conn) {
	return func(conn net.Conn) {
		if req, _ := request(conn); req == nil {
			return
		}
		io.WriteString(conn, "HTTP/1.1 200 OK\r\n\r\n")
		server := tls.Server(conn, &tls.Config{Certificates: []tls.Certificate{certificate}})
		if err := server.Handshake(); err != nil {
			return
		}
		request(server)
		io.WriteString(server, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok")
		server.Close()
	}
}

func readFile(t testing.TB, path string) []byte {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return content
}
