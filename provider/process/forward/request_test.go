package forward

import (
	"bufio"
	"encoding/base64"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

func basicHeader(userpass string) string {
	return "Proxy-Authorization: Basic " + base64.StdEncoding.EncodeToString([]byte(userpass)) + "\r\n"
}

func TestRefusals(t *testing.T) {
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed := free.Addr().String()
	_ = free.Close()
	open := start(t, nil)
	guarded := start(t, func(c *Config) { c.AllowTargets = nil })
	secret := start(t, func(c *Config) { c.Username, c.Password = "crawl", "p@:#$/%" })
	for _, test := range []struct {
		name    string
		p       *proxy
		request string
		status  int
		kind    string // of RFC 9209
	}{
		{"loopback by CONNECT", guarded, "CONNECT 127.0.0.1:80 HTTP/1.1\r\nHost: x\r\n\r\n", 403, kindProhibited},
		{"loopback by name", guarded, "CONNECT localhost:80 HTTP/1.1\r\nHost: x\r\n\r\n", 403, kindProhibited},
		{"mapped loopback", guarded, "CONNECT [::ffff:127.0.0.1]:80 HTTP/1.1\r\nHost: x\r\n\r\n", 403, kindProhibited},
		{"loopback in absolute form", guarded, "GET http://127.0.0.1/ HTTP/1.1\r\nHost: example.com\r\n\r\n", 403, kindProhibited},
		{"metadata service", guarded, "GET http://169.254.169.254/ HTTP/1.1\r\nHost: x\r\n\r\n", 403, kindProhibited},
		{"no credentials", secret, "CONNECT 127.0.0.1:80 HTTP/1.1\r\nHost: x\r\n\r\n", 407, kindDenied},
		{"no credentials in absolute form", secret, "GET http://127.0.0.1/ HTTP/1.1\r\nHost: x\r\n\r\n", 407, kindDenied},
		{"wrong password", secret, "CONNECT 127.0.0.1:80 HTTP/1.1\r\nHost: x\r\n" + basicHeader("crawl:wrong") + "\r\n", 407, kindDenied},
		{"colon moved", secret, "CONNECT 127.0.0.1:80 HTTP/1.1\r\nHost: x\r\n" + basicHeader("crawl:p@") + "\r\n", 407, kindDenied},
		{"another scheme", secret, "CONNECT 127.0.0.1:80 HTTP/1.1\r\nHost: x\r\nProxy-Authorization: Bearer x\r\n\r\n", 407, kindDenied},
		{"not base64", secret, "CONNECT 127.0.0.1:80 HTTP/1.1\r\nHost: x\r\nProxy-Authorization: Basic %%%\r\n\r\n", 407, kindDenied},
		{"nothing listens", open, "CONNECT " + closed + " HTTP/1.1\r\nHost: x\r\n\r\n", 502, kindRefused},
		{"nothing listens in absolute form", open, "GET http://" + closed + "/ HTTP/1.1\r\nHost: x\r\n\r\n", 502, kindRefused},
		{"no port", open, "CONNECT example.com HTTP/1.1\r\nHost: x\r\n\r\n", 400, ""},
		{"port 0", open, "CONNECT example.com:0 HTTP/1.1\r\nHost: x\r\n\r\n", 400, kindBadRequest},
		{"CONNECT with a body", open, "CONNECT 127.0.0.1:80 HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\nbody", 400, kindBadRequest},
		{"origin form", open, "GET / HTTP/1.1\r\nHost: x\r\n\r\n", 400, kindBadRequest},
		{"https in absolute form", open, "GET https://example.com/ HTTP/1.1\r\nHost: x\r\n\r\n", 400, kindBadRequest},
		{"ftp", open, "GET ftp://example.com/ HTTP/1.1\r\nHost: x\r\n\r\n", 400, kindBadRequest},
		{"credentials in the URL", open, "GET http://u:p@example.com/ HTTP/1.1\r\nHost: x\r\n\r\n", 400, kindBadRequest},
		{"two lengths", open, "POST http://" + closed + "/ HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab", 400, ""},
		{"space before the colon", open, "POST http://" + closed + "/ HTTP/1.1\r\nHost: x\r\nContent-Length : 1\r\n\r\na", 400, ""},
		{"unknown transfer coding", open, "POST http://" + closed + "/ HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n", 501, ""},
		{"long header", open, "GET http://" + closed + "/ HTTP/1.1\r\nHost: x\r\nA: " + strings.Repeat("a", 80<<10) + "\r\n\r\n", 431, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			conn := dialTCP(t, test.p.addr)
			response := ask(t, conn, bufio.NewReader(conn), test.request)
			defer func() { _ = response.Body.Close() }()
			if response.StatusCode != test.status {
				t.Errorf("status %s, want %d", response.Status, test.status)
			}
			if status := response.Header.Get("Proxy-Status"); !strings.Contains(status, test.kind) {
				t.Errorf("Proxy-Status %q, want %q in it", status, test.kind)
			}
			if challenge := response.Header.Get("Proxy-Authenticate"); (challenge != "") != (test.status == 407) {
				t.Errorf("Proxy-Authenticate %q with status %d", challenge, test.status)
			}
		})
	}
	for _, p := range []*proxy{open, guarded, secret} {
		if log := p.log.String(); strings.Contains(log, "p@:#$/%") || strings.Contains(log, "wrong") || strings.Contains(log, "u:p@") {
			t.Errorf("the access log has credentials: %s", log)
		}
	}
}

func TestForeignClientIsRefused(t *testing.T) {
	p := start(t, func(c *Config) { c.AllowClients = parsePrefixes("192.0.2.0/24") })
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}}
	conn, err := dialer.Dial("tcp", p.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	response := ask(t, conn, bufio.NewReader(conn), "CONNECT 127.0.0.1:80 HTTP/1.1\r\nHost: x\r\n\r\n")
	if response.StatusCode != http.StatusForbidden {
		t.Errorf("status %s, want 403", response.Status)
	}
	// From the address that it listens on comes the node itself: the probe.
	target := origin(t, func(conn *net.TCPConn) { _, _ = io.Copy(conn, conn) })
	connectTo(t, p, target)
}

func TestCredentialsAreReadAgain(t *testing.T) {
	file := filepath.Join(t.TempDir(), "credentials.json")
	write := func(content string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(`{"username":"u","password":"old"}`)
	p := start(t, func(c *Config) { c.CredentialsFile = file })
	accepts := func(password string) bool {
		return p.auth.check(http.Header{"Proxy-Authorization": {"Basic " + base64.StdEncoding.EncodeToString([]byte("u:"+password))}})
	}
	write(`{"username":"u","password":"new"}`)
	if err := p.Reload(); err != nil {
		t.Fatal(err)
	}
	if accepts("old") || !accepts("new") {
		t.Error("after a reload the old password counts, or the new one does not")
	}
	write(`{"username":"u","password":"secret-word"`)
	if err := p.Reload(); err == nil || strings.Contains(err.Error(), "secret-word") {
		t.Errorf("reload of a broken file: %v, want an error without its content", err)
	}
	if !accepts("new") {
		t.Error("a broken file took the credentials away")
	}
}

// seen is a target that keeps what reached it.
func seen(t *testing.T, answer func(w http.ResponseWriter, r *http.Request)) (url string, headers func() http.Header, requests func() int64) {
	t.Helper()
	var count atomic.Int64
	var last atomic.Pointer[http.Header]
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		count.Add(1)
		header := r.Header.Clone()
		header.Set("Host", r.Host)
		header.Set("Seen-Framing", fmt.Sprint(r.ContentLength, r.TransferEncoding))
		last.Store(&header)
		answer(w, r)
	}))
	t.Cleanup(server.Close)
	return server.URL, func() http.Header { return *last.Load() }, count.Load
}

func TestHeadersThatPassAndThoseThatDoNot(t *testing.T) {
	p := start(t, func(c *Config) { c.Username, c.Password = "u", "p" })
	target, headers, _ := seen(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Connection", "X-Private")
		w.Header().Set("X-Private", "1")
		w.Header().Set("Keep-Alive", "timeout=5")
		w.Header().Set("X-Public", "1")
		w.WriteHeader(http.StatusTeapot)
	})
	conn := dialTCP(t, p.addr)
	response := ask(t, conn, bufio.NewReader(conn), "GET "+target+"/a?b=secret HTTP/1.1\r\nHost: other.example\r\n"+basicHeader("u:p")+
		"Connection: X-Drop, keep-alive, Upgrade\r\nX-Drop: 1\r\nUpgrade: websocket\r\nProxy-Connection: keep-alive\r\nTe: trailers\r\n"+
		"X-Forwarded-For: 192.0.2.1\r\nX-Keep: 1\r\n\r\n")
	got := headers()
	for _, name := range []string{"Connection", "X-Drop", "Upgrade", "Proxy-Connection", "Proxy-Authorization", "Via", "Forwarded", "User-Agent", "Accept-Encoding"} {
		if value, ok := got[name]; ok {
			t.Errorf("the target got %s: %q", name, value)
		}
	}
	for name, want := range map[string]string{"X-Keep": "1", "X-Forwarded-For": "192.0.2.1", "Te": "trailers", "Host": strings.TrimPrefix(target, "http://")} {
		if got.Get(name) != want {
			t.Errorf("the target got %s: %q, want %q", name, got.Get(name), want)
		}
	}
	if response.StatusCode != http.StatusTeapot || response.Header.Get("X-Public") != "1" {
		t.Errorf("the client got %s, %v", response.Status, response.Header)
	}
	for _, name := range []string{"X-Private", "Keep-Alive", "Via", "Content-Type"} {
		if value, ok := response.Header[name]; ok {
			t.Errorf("the client got %s: %q", name, value)
		}
	}
	if log := p.logged(t, "/a"); strings.Contains(log, "secret") {
		t.Errorf("the access log has the query: %s", log)
	}
}

func TestAmbiguousFramingReachesTheTargetAsOneRequest(t *testing.T) {
	p := start(t, nil)
	target, headers, requests := seen(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		_, _ = w.Write(body)
	})
	conn := dialTCP(t, p.addr)
	reader := bufio.NewReader(conn)
	smuggled := "GET " + target + "/smuggled HTTP/1.1\r\nHost: x\r\n\r\n"
	response := ask(t, conn, reader, fmt.Sprintf(
		"POST %s/ HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n", target, 13+len(smuggled)))
	body, err := io.ReadAll(response.Body)
	if err != nil || string(body) != "abc" {
		t.Errorf("body %q, %v, want %q", body, err, "abc")
	}
	if framing := headers().Get("Seen-Framing"); framing != "-1 [chunked]" {
		t.Errorf("the target saw the framing %q, want chunked only", framing)
	}
	if got := requests(); got != 1 {
		t.Errorf("the target saw %d requests, want 1", got)
	}
}

func TestKeepAliveAndPooledUpstream(t *testing.T) {
	var connections atomic.Int64
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok") }))
	server.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			connections.Add(1)
		}
	}
	server.Start()
	defer server.Close()
	p := start(t, nil)
	conn := dialTCP(t, p.addr)
	reader := bufio.NewReader(conn)
	for range 5 {
		response := ask(t, conn, reader, "GET "+server.URL+"/ HTTP/1.1\r\nHost: x\r\n\r\n")
		if body, err := io.ReadAll(response.Body); err != nil || string(body) != "ok" {
			t.Fatalf("%q, %v", body, err)
		}
	}
	if got := connections.Load(); got != 1 {
		t.Errorf("%d connections to the target for 5 requests on one connection, want 1", got)
	}
}

func TestCutOffAnswerIsCutOffForTheClient(t *testing.T) {
	p := start(t, nil)
	target := origin(t, func(conn *net.TCPConn) {
		_, _ = bufio.NewReader(conn).ReadString('\n')
		_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n"+strings.Repeat("only this", 9000))
	})
	conn := dialTCP(t, p.addr)
	response := ask(t, conn, bufio.NewReader(conn), "GET http://"+target+"/ HTTP/1.1\r\nHost: x\r\n\r\n")
	if _, err := io.ReadAll(response.Body); err == nil {
		t.Error("the client takes a cut-off answer for a whole one")
	}
}

func TestStreamIsPassedOnAtOnce(t *testing.T) {
	p := start(t, nil)
	proceed := make(chan struct{})
	target, _, _ := seen(t, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "first\n")
		_ = http.NewResponseController(w).Flush()
		<-proceed
		w.Header().Set(http.TrailerPrefix+"X-Sum", "7")
	})
	conn := dialTCP(t, p.addr)
	response := ask(t, conn, bufio.NewReader(conn), "GET "+target+"/ HTTP/1.1\r\nHost: x\r\nTe: trailers\r\n\r\n")
	line, err := bufio.NewReader(response.Body).ReadString('\n')
	close(proceed)
	if err != nil || line != "first\n" {
		t.Errorf("%q, %v before the answer's end, want the first event", line, err)
	}
}

func TestSlowTargetIsATimeout(t *testing.T) {
	p := start(t, func(c *Config) { c.MaxDuration = 50 * time.Millisecond })
	target := origin(t, func(conn *net.TCPConn) { _, _ = io.Copy(io.Discard, conn) })
	conn := dialTCP(t, p.addr)
	response := ask(t, conn, bufio.NewReader(conn), "GET http://"+target+"/ HTTP/1.1\r\nHost: x\r\n\r\n")
	if response.StatusCode != http.StatusGatewayTimeout {
		t.Errorf("status %s, want 504", response.Status)
	}
}

func TestClientThatDoesNotReadIsIdle(t *testing.T) {
	p := start(t, func(c *Config) { c.IdleTimeout = 200 * time.Millisecond })
	target := origin(t, func(conn *net.TCPConn) {
		_, _ = bufio.NewReader(conn).ReadString('\n')
		_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\n\r\n")
		for chunk := make([]byte, 1<<20); ; {
			if _, err := conn.Write(chunk); err != nil {
				return
			}
		}
	})
	conn := dialTCP(t, p.addr)
	if _, err := fmt.Fprintf(conn, "GET http://%s/stuck HTTP/1.1\r\nHost: x\r\n\r\n", target); err != nil {
		t.Fatal(err)
	}
	p.logged(t, "cut off")
}

func TestLongUploadIsNotIdle(t *testing.T) {
	t.Parallel()
	const idle = 2 * time.Second
	p := start(t, func(c *Config) { c.IdleTimeout = idle })
	target, _, _ := seen(t, func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) })
	conn := dialTCP(t, p.addr)
	const pieces = 32
	if _, err := fmt.Fprintf(conn, "POST %s/ HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n", target, pieces); err != nil {
		t.Fatal(err)
	}
	tick := time.NewTicker(idle / 16)
	defer tick.Stop()
	for range pieces {
		<-tick.C
		if _, err := io.WriteString(conn, "x"); err != nil {
			t.Fatal(err)
		}
	}
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil || response.StatusCode != http.StatusOK {
		t.Errorf("%v, %v, want the answer to an upload that took two idle limits", response, err)
	}
}

func TestBindChoosesTheSource(t *testing.T) {
	from := make(chan netip.Addr, 1)
	target := origin(t, func(conn *net.TCPConn) { from <- ipOf(conn.RemoteAddr()) })
	bind := netip.MustParseAddr("127.0.0.9")
	p := start(t, func(c *Config) { c.Bind = bind })
	connectTo(t, p, target)
	if got := <-from; got != bind {
		t.Errorf("the target saw %s, want %s", got, bind)
	}
}

func TestBindThatIsNotTheNodes(t *testing.T) {
	server, err := New(Config{Listen: "127.0.0.1:0", Bind: netip.MustParseAddr("192.0.2.1")}, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := server.Listen(); err == nil || !strings.Contains(err.Error(), "bind 192.0.2.1") {
		t.Errorf("listen: %v, want the address named", err)
	}
}

func TestIPv6(t *testing.T) {
	listener, err := net.Listen("tcp", "[::1]:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	p := start(t, func(c *Config) { c.Listen = "[::1]:0" })
	connectTo(t, p, listener.Addr().String())
}

func FuzzBasic(f *testing.F) {
	for _, seed := range []string{"", "Basic", "Basic dTpw", "basic  dTpw", "Bearer x", "Basic =", "Basic dTpw "} {
		f.Add(seed)
	}
	a, err := newAuthenticator(Config{Username: "u", Password: "p"})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, header string) {
		given, err := basic(header)
		if got := a.check(http.Header{"Proxy-Authorization": {header}}); got != (err == nil && string(given) == "u:p") {
			t.Fatalf("%q accepted: %t, decoded %q, %v", header, got, given, err)
		}
	})
}
