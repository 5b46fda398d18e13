package forward

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var loopback = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("::1/128")}

// syncBuffer is an access log that tests read while it is written.
type syncBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

type proxy struct {
	*Server
	addr string
	log  *syncBuffer
}

// start runs a proxy that is shut down when the test ends.
func start(t *testing.T, change func(*Config)) *proxy {
	t.Helper()
	config := Config{Listen: "127.0.0.1:0", AllowClients: loopback, AllowTargets: loopback}
	if change != nil {
		change(&config)
	}
	log := &syncBuffer{}
	server, err := New(config, log)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := server.Listen()
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	t.Cleanup(func() {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		server.Shutdown(ctx)
		if err := <-served; err != nil {
			t.Errorf("serve: %v", err)
		}
	})
	return &proxy{Server: server, addr: listener.Addr().String(), log: log}
}

// dialTCP connects and closes the connection when the test ends.
func dialTCP(t *testing.T, addr string) *net.TCPConn {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	tcp, ok := conn.(*net.TCPConn)
	if !ok {
		t.Fatalf("dialled a %T", conn)
	}
	return tcp
}

// origin accepts connections and handles each.
func origin(t *testing.T, handle func(conn *net.TCPConn)) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var handlers sync.WaitGroup
	handlers.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			handlers.Go(func() {
				defer func() { _ = conn.Close() }()
				_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
				if tcp, ok := conn.(*net.TCPConn); ok {
					handle(tcp)
				}
			})
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		handlers.Wait()
	})
	return listener.Addr().String()
}

// ask sends raw bytes and reads one answer.
func ask(t *testing.T, conn net.Conn, reader *bufio.Reader, request string) *http.Response {
	t.Helper()
	if _, err := io.WriteString(conn, request); err != nil {
		t.Fatal(err)
	}
	method, _, _ := strings.Cut(request, " ")
	response, err := http.ReadResponse(reader, &http.Request{Method: method})
	if err != nil {
		t.Fatal(err)
	}
	return response
}

// connectTo opens a tunnel.
func connectTo(t *testing.T, p *proxy, target string) (*net.TCPConn, *bufio.Reader) {
	t.Helper()
	conn := dialTCP(t, p.addr)
	reader := bufio.NewReader(conn)
	response := ask(t, conn, reader, "CONNECT "+target+" HTTP/1.1\r\nHost: "+target+"\r\n\r\n")
	if response.StatusCode != http.StatusOK {
		t.Fatalf("CONNECT %s: %s", target, response.Status)
	}
	return conn, reader
}

// logged waits for a line of the access log.
func (p *proxy) logged(t *testing.T, want string) string {
	t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for !strings.Contains(p.log.String(), want) {
		if time.Now().After(deadline) {
			t.Fatalf("the access log never had %q: %s", want, p.log.String())
		}
		time.Sleep(time.Millisecond)
	}
	return p.log.String()
}

func TestTunnelCarriesBothWaysAndHalfCloses(t *testing.T) {
	p := start(t, nil)
	big := bytes.Repeat([]byte("0123456789abcdef"), 1<<16) // 1 MiB: many portions
	target := origin(t, func(conn *net.TCPConn) {
		got, err := io.ReadAll(conn) // ends only when the client's half-close arrives
		if err != nil || !bytes.Equal(got, big) {
			t.Errorf("the target got %d bytes, %v, want %d", len(got), err, len(big))
		}
		_, _ = conn.Write(big)
	})
	conn := dialTCP(t, p.addr)
	// The first bytes of the tunnel come right behind the request, and so into
	// the buffer of the HTTP server.
	if _, err := fmt.Fprintf(conn, "CONNECT %s HTTP/1.1\r\nHost: x\r\n\r\n%s", target, big[:1000]); err != nil {
		t.Fatal(err)
	}
	reader := bufio.NewReader(conn)
	response, err := http.ReadResponse(reader, &http.Request{Method: http.MethodConnect})
	if err != nil || response.StatusCode != http.StatusOK {
		t.Fatalf("%v, %v", response, err)
	}
	if _, err := conn.Write(big[1000:]); err != nil {
		t.Fatal(err)
	}
	if err := conn.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(reader)
	if err != nil || !bytes.Equal(got, big) {
		t.Errorf("the client got %d bytes, %v, want %d", len(got), err, len(big))
	}
	p.logged(t, fmt.Sprintf(`"sent":%d,"received":%d`, len(big), len(big)))
}

func TestTargetsHalfCloseReachesTheClientFirst(t *testing.T) {
	p := start(t, nil)
	got := make(chan string, 1)
	target := origin(t, func(conn *net.TCPConn) {
		_ = conn.CloseWrite()
		rest, _ := io.ReadAll(conn)
		got <- string(rest)
	})
	conn, reader := connectTo(t, p, target)
	if rest, err := io.ReadAll(reader); err != nil || len(rest) != 0 {
		t.Fatalf("got %q, %v, want the end", rest, err)
	}
	if _, err := io.WriteString(conn, "late"); err != nil {
		t.Fatal(err)
	}
	if err := conn.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if late := <-got; late != "late" {
		t.Errorf("the target got %q after its own half-close, want %q", late, "late")
	}
}

func TestIdleTunnelEnds(t *testing.T) {
	p := start(t, func(c *Config) { c.IdleTimeout = 50 * time.Millisecond })
	target := origin(t, func(conn *net.TCPConn) { _, _ = io.Copy(io.Discard, conn) })
	_, reader := connectTo(t, p, target)
	if _, err := reader.ReadByte(); err == nil {
		t.Error("an idle tunnel stayed open")
	}
	p.logged(t, errIdle.Error())
}

func TestBusyTunnelIsNotIdle(t *testing.T) {
	t.Parallel()
	const idle = 2 * time.Second
	p := start(t, func(c *Config) { c.IdleTimeout = idle })
	target := origin(t, func(conn *net.TCPConn) { _, _ = io.Copy(conn, conn) })
	conn, reader := connectTo(t, p, target)
	tick := time.NewTicker(idle / 8)
	defer tick.Stop()
	for begin := time.Now(); time.Since(begin) < 2*idle; <-tick.C {
		if _, err := io.WriteString(conn, "x"); err != nil {
			t.Fatal(err)
		}
		if _, err := reader.ReadByte(); err != nil {
			t.Fatalf("ended after %s although bytes moved: %v", time.Since(begin), err)
		}
	}
}

func TestLongTunnelEnds(t *testing.T) {
	p := start(t, func(c *Config) { c.MaxDuration = 50 * time.Millisecond })
	target := origin(t, func(conn *net.TCPConn) { _, _ = io.Copy(conn, conn) })
	_, reader := connectTo(t, p, target)
	if _, err := reader.ReadByte(); err == nil {
		t.Error("a tunnel went beyond its maximum")
	}
	p.logged(t, errMaximum.Error())
}

func TestShutdownLetsTunnelsFinish(t *testing.T) {
	p := start(t, nil)
	target := origin(t, func(conn *net.TCPConn) { _, _ = io.Copy(conn, conn) })
	conn, reader := connectTo(t, p, target)
	down := make(chan struct{})
	go func() {
		defer close(down)
		p.Shutdown(context.Background())
	}()
	for { // until it no longer accepts
		probe, err := net.Dial("tcp", p.addr)
		if err != nil {
			break
		}
		_ = probe.Close()
	}
	if _, err := io.WriteString(conn, "x"); err != nil {
		t.Fatal(err)
	}
	if got, err := reader.ReadByte(); err != nil || got != 'x' {
		t.Fatalf("a tunnel did not outlive the start of the shutdown: %q, %v", got, err)
	}
	select {
	case <-down:
		t.Fatal("the shutdown did not wait for the tunnel")
	default:
	}
	if err := conn.Close(); err != nil {
		t.Fatal(err)
	}
	<-down
}

func TestShutdownEndsTunnelsByForce(t *testing.T) {
	p := start(t, nil)
	target := origin(t, func(conn *net.TCPConn) { _, _ = io.Copy(conn, conn) })
	_, reader := connectTo(t, p, target)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	p.Shutdown(ctx)
	if _, err := reader.ReadByte(); err == nil {
		t.Error("a tunnel outlived the shutdown")
	}
	p.logged(t, errShutdown.Error())
}

func TestPipesAreNotHeldByIdleTunnels(t *testing.T) {
	p := start(t, nil)
	target := origin(t, func(conn *net.TCPConn) { _, _ = io.Copy(conn, conn) })
	const tunnels = 32
	for range tunnels {
		conn, reader := connectTo(t, p, target)
		if _, err := io.WriteString(conn, "x"); err != nil {
			t.Fatal(err)
		}
		if _, err := reader.ReadByte(); err != nil {
			t.Fatal(err)
		}
	}
	if held := len(p.pipes.free); held == 0 || held >= tunnels {
		t.Errorf("%d free pipes with %d idle tunnels, want a few that all share", held, tunnels)
	}
}
