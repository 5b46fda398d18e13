package e2e_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"path/filepath"
	"sync"
	"testing"
)

// relay is a socket before libvirt's on which a test stops a call in the middle:
// what a start does between two calls is over too soon to be met by chance.
type relay struct {
	t      *testing.T
	socket string // libvirt's own
	// Socket is the relay's.
	Socket string

	listener net.Listener
	wg       sync.WaitGroup // everything that runs

	mu     sync.Mutex // guards the fields below
	closed bool
	conns  map[net.Conn]bool
	gates  []*gate
}

// gate is where one call is stopped.
type gate struct {
	texts  []string // all in the call
	before bool
	// arrived is closed when the call is there; the test closes open.
	arrived, open chan struct{}
}

func newRelay(h *libvirtHost) *relay {
	h.t.Helper()
	r := &relay{t: h.t, socket: h.Socket, Socket: filepath.Join(h.dir, "sock", "relay"), conns: map[net.Conn]bool{}}
	var err error
	if r.listener, err = net.Listen("unix", r.Socket); err != nil {
		h.t.Fatal(err)
	}
	r.wg.Go(r.serve)
	h.t.Cleanup(r.close)
	return r
}

func (r *relay) close() {
	_ = r.listener.Close()
	r.mu.Lock()
	r.closed = true
	for conn := range r.conns {
		_ = conn.Close()
	}
	r.mu.Unlock()
	r.wg.Wait()
}

// stopBefore keeps the next request that holds all of texts from libvirt, and
// what follows on its connection.
func (r *relay) stopBefore(texts ...string) *gate { return r.stop(true, texts) }

// stopAfter keeps the answer to the next request that holds all of texts: it is
// done, and nobody knows.
func (r *relay) stopAfter(texts ...string) *gate { return r.stop(false, texts) }

func (r *relay) stop(before bool, texts []string) *gate {
	g := &gate{texts: texts, before: before, arrived: make(chan struct{}), open: make(chan struct{})}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.gates = append(r.gates, g)
	return g
}

// match takes out the gate that is for a packet.
func (r *relay) match(packet []byte) *gate {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, g := range r.gates {
		if g.matches(packet) {
			r.gates = append(r.gates[:i:i], r.gates[i+1:]...)
			return g
		}
	}
	return nil
}

func (g *gate) matches(packet []byte) bool {
	for _, text := range g.texts {
		if !bytes.Contains(packet, []byte(text)) {
			return false
		}
	}
	return true
}

func (r *relay) serve() {
	for {
		client, err := r.listener.Accept()
		if err != nil {
			return
		}
		daemon, err := net.Dial("unix", r.socket)
		if err != nil {
			_ = client.Close() // as when libvirtd is down
			continue
		}
		p := &passage{relay: r, client: client, daemon: daemon, done: make(chan struct{}), stopped: map[uint32]*gate{}}
		r.mu.Lock()
		late := r.closed
		r.conns[client], r.conns[daemon] = true, true
		r.mu.Unlock()
		if late {
			closeBoth(client, daemon)
		}
		r.wg.Go(func() { p.copy(p.requests) })
		r.wg.Go(func() { p.copy(p.replies) })
	}
}

// passage is one connection through the relay.
type passage struct {
	*relay
	client, daemon net.Conn
	once           sync.Once
	done           chan struct{} // closed when either side has left

	writing sync.Mutex // held over a write to client
	serials sync.Mutex // guards stopped
	stopped map[uint32]*gate
}

// copy runs one direction; both end when one does.
func (p *passage) copy(direction func() error) {
	_ = direction() // that somebody has left
	p.once.Do(func() {
		close(p.done)
		closeBoth(p.client, p.daemon)
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.conns, p.client)
		delete(p.conns, p.daemon)
	})
}

func (p *passage) requests() error {
	for {
		packet, err := readPacket(p.client)
		if err != nil {
			return err
		}
		if g := p.match(packet); g != nil && g.before {
			if !p.wait(g) {
				return net.ErrClosed
			}
		} else if g != nil {
			p.serials.Lock()
			p.stopped[serial(packet)] = g
			p.serials.Unlock()
		}
		if _, err := p.daemon.Write(packet); err != nil {
			return err
		}
	}
}

func (p *passage) replies() error {
	for {
		packet, err := readPacket(p.daemon)
		if err != nil {
			return err
		}
		p.serials.Lock()
		g := p.stopped[serial(packet)]
		delete(p.stopped, serial(packet))
		p.serials.Unlock()
		if g == nil {
			p.write(packet)
			continue
		}
		p.wg.Go(func() { // The other calls of the connection go on.
			if p.wait(g) {
				p.write(packet)
			}
		})
	}
}

// wait stands at a gate until it opens; false is that the connection is gone.
// A call whose caller has left goes nowhere, even if the gate opens then.
func (p *passage) wait(g *gate) bool {
	close(g.arrived)
	select {
	case <-g.open:
		return true
	case <-p.done:
		return false
	}
}

func (p *passage) write(packet []byte) {
	p.writing.Lock()
	defer p.writing.Unlock()
	if _, err := p.client.Write(packet); err != nil {
		_ = p.client.Close() // which ends the passage
	}
}

func closeBoth(a, b net.Conn) {
	_ = a.Close()
	_ = b.Close()
}

// readPacket reads one of libvirt's, which begin with their length.
func readPacket(from io.Reader) ([]byte, error) {
	const header, most = 28, 64 << 20
	var length [4]byte
	if _, err := io.ReadFull(from, length[:]); err != nil {
		return nil, err
	}
	size := binary.BigEndian.Uint32(length[:])
	if size < header || size > most {
		return nil, errors.New("not one of libvirt's packets")
	}
	packet := make([]byte, size)
	copy(packet, length[:])
	_, err := io.ReadFull(from, packet[4:])
	return packet, err
}

func serial(packet []byte) uint32 { return binary.BigEndian.Uint32(packet[20:]) }
