package probe

import (
	"context"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
)

var quiet = log.New(io.Discard, "", 0)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patient is a timeout that no working probe reaches on a busy machine.
const patient = 20 * time.Second

func newProber(t *testing.T, config Config, proxy Proxy) *Prober {
	t.Helper()
	if config.Timeout == 0 {
		config.Timeout = patient
	}
	prober, err := New(config, proxy)
	if err != nil {
		t.Fatal(err)
	}
	return prober
}

const (
	opened    = "HTTP/1.1 200 Connection established\r\n\r\n"
	bigHeader = "X-Fill: 0123456789012345678901234567890123456789012345678901234567890123\r\n"
)

// Each is a proxy seen in the wild. The same fault must give the same words
// every time, since they are Consul's check output.
func TestOnceNamesTheStageThatFailed(t *testing.T) {
	good := newOrigin(t, hello)
	secure, plain := strings.TrimPrefix(good.https, "https://"), good.http+"/"
	now := time.Now()
	forged := selfSigned(t, now.Add(-time.Hour), now.Add(time.Hour), "127.0.0.1")
	expired := selfSigned(t, now.Add(-2*time.Hour), now.Add(-time.Hour), "127.0.0.1")
	misnamed := selfSigned(t, now.Add(-time.Hour), now.Add(time.Hour), "elsewhere.example")

	tests := map[string]struct {
		proxy   func(net.Conn)
		url     string
		hurry   bool
		trusted []byte
		stage   Stage
		text    string
	}{
		"407 to everything, https": {proxy: says("HTTP/1.1 407 Proxy Authentication Required\r\n\r\n"), url: good.https, stage: StageAuth,
			text: "the proxy answered 407 to CONNECT " + secure + " with the configured credentials"},
		"407 to everything, http": {proxy: says("HTTP/1.1 407 No\r\nContent-Length: 0\r\n\r\n"), url: plain, stage: StageAuth,
			text: "the proxy answered 407 to " + plain + " with the configured credentials"},
		"refuses CONNECT": {proxy: (&forwarder{user: "u", password: "secret", refuseConnect: true}).serve, url: good.https, stage: StageConnect,
			text: "the proxy answered 403 Forbidden to CONNECT " + secure},
		"answers garbage to CONNECT": {proxy: says("SSH-2.0-OpenSSH_9.2\r\n\r\n"), url: good.https, stage: StageConnect,
			text: "the answer to CONNECT " + secure + " is not HTTP, or its headers exceed 64 KiB"},
		"closes instead of answering CONNECT": {proxy: says(""), url: good.https, stage: StageConnect,
			text: "the connection was closed before a complete answer to CONNECT " + secure},
		"closes within the answer to CONNECT": {proxy: says("HTTP/1.1 200 OK\r\nX-A: "), url: good.https, stage: StageConnect,
			text: "the connection was closed before a complete answer to CONNECT " + secure},
		"huge headers to CONNECT": {proxy: says("HTTP/1.1 200 OK\r\n" + strings.Repeat(bigHeader, 2000)), url: good.https, stage: StageConnect},
		"stalls at CONNECT": {proxy: stallsAfter(""), url: good.https, hurry: true, stage: StageTimeout,
			text: "no answer to CONNECT " + secure},
		"intercepts TLS": {proxy: intercepts(forged), url: good.https, stage: StageTLS,
			text: "the certificate shown for 127.0.0.1 is signed by an unknown authority: the proxy intercepts TLS, or ca_file lacks the target's CA"},
		"leads to an expired certificate": {proxy: intercepts(expired), trusted: expired.Certificate[0], url: good.https, stage: StageTLS,
			text: "the certificate shown for 127.0.0.1 has expired or is not yet valid"},
		"leads to another server": {proxy: intercepts(misnamed), trusted: misnamed.Certificate[0], url: good.https, stage: StageTLS,
			text: "the certificate shown for 127.0.0.1 is for other names"},
		"answers 200 to CONNECT and closes": {proxy: says(opened), url: good.https, stage: StageTLS,
			text: "the tunnel to 127.0.0.1 was closed during the handshake"},
		"speaks HTTP in the tunnel": {proxy: says(opened + "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"), url: good.https, stage: StageTLS},
		"stalls in the tunnel": {proxy: stallsAfter(opened), url: good.https, hurry: true, stage: StageTimeout,
			text: "no TLS handshake with 127.0.0.1"},
		"garbage instead of HTTP": {proxy: says("\x00\x01\x02hello\n"), url: plain, stage: StageHTTP,
			text: "the answer to " + plain + " is not HTTP, or its headers exceed 64 KiB"},
		"closes without an answer": {proxy: says(""), url: plain, stage: StageHTTP,
			text: "the connection was closed before a complete answer to " + plain},
		"truncated body": {proxy: says("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf"), url: plain, stage: StageHTTP,
			text: "the connection was closed before a complete answer to " + plain},
		"truncated chunk": {proxy: says("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhe"), url: plain, stage: StageHTTP,
			text: "the connection was closed before a complete answer to " + plain},
		"huge headers": {proxy: says("HTTP/1.1 200 OK\r\n" + strings.Repeat(bigHeader, 2000) + "\r\n"), url: plain, stage: StageHTTP,
			text: "the answer to " + plain + " is not HTTP, or its headers exceed 64 KiB"},
		"stalls in the body": {proxy: stallsAfter("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf"), url: plain, hurry: true, stage: StageTimeout,
			text: "no complete answer from " + plain},
		"redirects to itself": {proxy: says("HTTP/1.1 302 Found\r\nLocation: " + plain + "\r\nContent-Length: 0\r\n\r\n"), url: plain, stage: StageHTTP,
			text: plain + " answered 302 Found, a redirect: want 2xx, so give the URL that it leads to"},
		"cannot reach the target": {proxy: says("HTTP/1.1 503 Out of order u:secret\r\nContent-Length: 0\r\n\r\n"), url: plain, stage: StageHTTP,
			text: plain + " answered 503 Service Unavailable: want 2xx"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			proxy := acceptor(t, "127.0.0.1:0", test.proxy)
			proxy.Username, proxy.Password = "u", "secret"
			config := Config{URLs: []string{test.url}, CAFile: good.caFile}
			if test.trusted != nil {
				config.CAFile = writePEM(t, test.trusted)
			}
			if test.hurry {
				config.Timeout = time.Second
			}
			prober := newProber(t, config, proxy)
			verdict := prober.Once(t.Context())
			if verdict.OK || verdict.Stage != test.stage {
				t.Fatalf("verdict %+v, want stage %s", verdict, test.stage)
			}
			if want := string(test.stage) + ": " + test.text; test.text != "" && verdict.Message != want {
				t.Errorf("message\n%s\nwant\n%s", verdict.Message, want)
			}
			repeats := 3
			if test.hurry {
				repeats = 1
			}
			for range repeats {
				if again := prober.Once(t.Context()); again != verdict {
					t.Errorf("the same fault is told as\n%+v\nand as\n%+v", verdict, again)
				}
			}
			if strings.Contains(verdict.Message, "secret") || strings.Contains(verdict.Message, "dTpzZWNyZXQ") {
				t.Errorf("the message shows the credentials: %s", verdict.Message)
			}
		})
	}
}

func TestOnceWithNobodyListening(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	proxy := Proxy{Host: "127.0.0.1", Port: listener.Addr().(*net.TCPAddr).Port}
	listener.Close()
	verdict := newProber(t, Config{URLs: []string{"https://target.example"}}, proxy).Once(t.Context())
	if verdict.Stage != StageTCP || verdict.Message != "tcp: nothing listens on the proxy's port: connection refused" {
		t.Errorf("verdict %+v", verdict)
	}
}

func TestOncePasses(t *testing.T) {
	good := newOrigin(t, hello)
	endless := newOrigin(t, func(w http.ResponseWriter, r *http.Request) {
		for r.Context().Err() == nil {
			if _, err := w.Write(make([]byte, 4096)); err != nil {
				return
			}
		}
	})
	for name, url := range map[string]string{
		"https": good.https, "http": good.http, "a page without end": endless.http,
	} {
		t.Run(name, func(t *testing.T) {
			proxy := new(forwarder).start(t, "127.0.0.1:0")
			verdict := newProber(t, Config{URLs: []string{url}, CAFile: good.caFile}, proxy).Once(t.Context())
			if !verdict.OK || verdict.Message != Works || verdict.Stage != "" || verdict.Latency <= 0 {
				t.Errorf("verdict %+v", verdict)
			}
		})
	}
}

// Case 16 of the bug reports: for plain http alone such a proxy works.
func TestOnceThroughAProxyWithoutConnect(t *testing.T) {
	good := newOrigin(t, hello)
	proxy := (&forwarder{refuseConnect: true}).start(t, "127.0.0.1:0")
	if verdict := newProber(t, Config{URLs: []string{good.http}}, proxy).Once(t.Context()); !verdict.OK {
		t.Errorf("http: %+v", verdict)
	}
	if verdict := newProber(t, Config{URLs: []string{good.https}, CAFile: good.caFile}, proxy).Once(t.Context()); verdict.Stage != StageConnect {
		t.Errorf("https: %+v", verdict)
	}
}

// Case 15: the probe uses the credentials of the clients, whatever is in them.
func TestOnceSendsTheCredentials(t *testing.T) {
	good := newOrigin(t, hello)
	fake := &forwarder{user: "us er@/é", password: "p@:#$/%"}
	proxy := fake.start(t, "127.0.0.1:0")
	for _, url := range []string{good.https, good.http} {
		prober := newProber(t, Config{URLs: []string{url}, CAFile: good.caFile}, proxy)
		if verdict := prober.Once(t.Context()); verdict.Stage != StageAuth || !strings.HasSuffix(verdict.Message, " without credentials") {
			t.Errorf("%s without credentials: %+v", url, verdict)
		}
		if err := prober.SetCredentials("us er@/é", "wrong"); err != nil {
			t.Fatal(err)
		}
		if verdict := prober.Once(t.Context()); verdict.Stage != StageAuth || !strings.HasSuffix(verdict.Message, " with the configured credentials") {
			t.Errorf("%s with a wrong password: %+v", url, verdict)
		}
		if err := prober.SetCredentials("us er@/é", "p@:#$/%"); err != nil {
			t.Fatal(err)
		}
		if verdict := prober.Once(t.Context()); !verdict.OK {
			t.Errorf("%s with the right password: %+v", url, verdict)
		}
	}
}

func TestOnceMakesANewConnectionAndLooksLikeAClient(t *testing.T) {
	var seen atomic.Value
	good := newOrigin(t, func(w http.ResponseWriter, r *http.Request) { seen.Store(r.Header.Clone()) })
	fake := new(forwarder)
	prober := newProber(t, Config{URLs: []string{good.https}, CAFile: good.caFile}, fake.start(t, "127.0.0.1:0"))
	for range 3 {
		if verdict := prober.Once(t.Context()); !verdict.OK {
			t.Fatalf("verdict %+v", verdict)
		}
	}
	fake.mu.Lock()
	defer fake.mu.Unlock()
	if fake.connections != 3 {
		t.Errorf("%d connections for 3 probes", fake.connections)
	}
	if connect := fake.seen[0]; connect.Method != http.MethodConnect || len(connect.Header) != 1 || connect.UserAgent() != userAgent {
		t.Errorf("the proxy saw %s with %v", connect.Method, connect.Header)
	}
	for header := range seen.Load().(http.Header) {
		if !slices.Contains([]string{"Accept", "User-Agent", "Connection"}, header) {
			t.Errorf("the target saw the header %s", header)
		}
	}
}

func TestOnceTriesTheNextURL(t *testing.T) {
	good := newOrigin(t, hello)
	proxy := new(forwarder).start(t, "127.0.0.1:0")
	broken := newOrigin(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusForbidden) })
	hangs := newOrigin(t, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })

	verdict := newProber(t, Config{URLs: []string{broken.http, good.http}}, proxy).Once(t.Context())
	if !verdict.OK {
		t.Errorf("one URL of two fails: %+v", verdict)
	}
	verdict = newProber(t, Config{URLs: []string{hangs.http, good.http}, Timeout: 8 * time.Second}, proxy).Once(t.Context())
	if !verdict.OK {
		t.Errorf("the first URL hangs: %+v", verdict)
	}
	verdict = newProber(t, Config{URLs: []string{broken.http + "/a", broken.http + "/b"}}, proxy).Once(t.Context())
	if want := "http: " + broken.http + "/a answered 403 Forbidden: want 2xx"; verdict.Message != want {
		t.Errorf("both fail: %q, want %q", verdict.Message, want)
	}
}

func TestOnceReadsTheCAFileAgain(t *testing.T) {
	good := newOrigin(t, hello)
	now := time.Now()
	other := selfSigned(t, now.Add(-time.Hour), now.Add(time.Hour), "127.0.0.1")
	caFile := writePEM(t, other.Certificate[0])
	prober := newProber(t, Config{URLs: []string{good.https}, CAFile: caFile}, new(forwarder).start(t, "127.0.0.1:0"))
	if verdict := prober.Once(t.Context()); verdict.Stage != StageTLS {
		t.Fatalf("with another CA: %+v", verdict)
	}
	replaceFile(t, caFile, readFile(t, good.caFile))
	if verdict := prober.Once(t.Context()); !verdict.OK {
		t.Errorf("with the right CA: %+v", verdict)
	}
	replaceFile(t, caFile, []byte("half a cert"))
	if verdict := prober.Once(t.Context()); !verdict.OK {
		t.Errorf("a broken file must not take down what worked: %+v", verdict)
	}
	missing := newProber(t, Config{URLs: []string{good.https}, CAFile: caFile + ".missing"}, new(forwarder).start(t, "127.0.0.1:0"))
	if verdict := missing.Once(t.Context()); verdict.Stage != StageTLS || !strings.Contains(verdict.Message, "ca.pem.missing: no such file") {
		t.Errorf("a CA file that never existed: %+v", verdict)
	}
}

func TestOnceReturnsWhenCancelled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	proxy := acceptor(t, "127.0.0.1:0", func(conn net.Conn) {
		request(conn)
		cancel()
		io.Copy(io.Discard, conn)
	})
	started := time.Now()
	verdict := newProber(t, Config{URLs: []string{"https://target.example"}}, proxy).Once(ctx)
	if verdict.OK || time.Since(started) > patient/2 {
		t.Errorf("verdict %+v after %v", verdict, time.Since(started))
	}
}

func TestProxyNeverShowsThePassword(t *testing.T) {
	proxy := Proxy{Host: "::1", Port: 3128, Username: "u", Password: "secret"}
	for _, format := range []string{"%v", "%+v", "%#v", "%s"} {
		if text := fmt.Sprintf(format, proxy); text != "[::1]:3128" {
			t.Errorf("%s: %s", format, text)
		}
	}
}
