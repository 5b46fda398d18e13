package leasetest

import (
	"net"
	"sync"
	"testing"
)

// Link is a connection between a client and a server that a test can cut. While
// it is cut nothing arrives and nothing is refused, as in a network that drops
// packets; what was sent meanwhile arrives when it is healed.
type Link struct {
	// Address is what the client connects to.
	Address string

	target   string
	listener net.Listener
	// mu guards what follows.
	mu sync.Mutex
	// open is closed while the link is whole.
	open  chan struct{}
	conns map[net.Conn]struct{}
	// ended is closed at the end of the test.
	ended chan struct{}
	group sync.WaitGroup
}

// NewLink makes a link to the address; it ends with the test.
func NewLink(t testing.TB, target string) *Link {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := &Link{
		Address: listener.Addr().String(), target: target, listener: listener,
		open: make(chan struct{}), conns: map[net.Conn]struct{}{}, ended: make(chan struct{}),
	}
	close(l.open)
	l.group.Go(l.accept)
	t.Cleanup(func() {
		close(l.ended)
		_ = listener.Close()
		l.mu.Lock()
		for conn := range l.conns {
			_ = conn.Close()
		}
		l.mu.Unlock()
		l.group.Wait()
	})
	return l
}

// Cut lets nothing through any more.
func (l *Link) Cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open = make(chan struct{})
}

// Heal lets everything through again.
func (l *Link) Heal() {
	l.mu.Lock()
	defer l.mu.Unlock()
	select {
	case <-l.open:
	default:
		close(l.open)
	}
}

// pass waits until the link is whole; false at the end of the test.
func (l *Link) pass() bool {
	l.mu.Lock()
	open := l.open
	l.mu.Unlock()
	select {
	case <-open:
		return true
	case <-l.ended:
		return false
	}
}

func (l *Link) accept() {
	for {
		client, err := l.listener.Accept()
		if err != nil {
			return
		}
		l.group.Go(func() { l.serve(client) })
	}
}

func (l *Link) serve(client net.Conn) {
	defer l.keep(client)()
	if !l.pass() {
		return
	}
	server, err := net.Dial("tcp", l.target)
	if err != nil {
		return
	}
	defer l.keep(server)()
	l.group.Go(func() { l.copy(server, client) })
	l.copy(client, server)
}

// keep lets the end of the test close the connection.
func (l *Link) keep(conn net.Conn) (closed func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.conns[conn] = struct{}{}
	select {
	case <-l.ended:
		_ = conn.Close()
	default:
	}
	return func() {
		_ = conn.Close()
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.conns, conn)
	}
}

// copy passes bytes on until one side ends; then it ends the other, too.
func (l *Link) copy(to, from net.Conn) {
	defer to.Close()
	buffer := make([]byte, 32<<10)
	for {
		n, err := from.Read(buffer)
		if !l.pass() {
			return
		}
		if n > 0 {
			if _, err := to.Write(buffer[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}
