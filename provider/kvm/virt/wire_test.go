package virt

import (
	"bytes"
	"encoding/binary"
	"io"
	"net"
	"path/filepath"
	"sync"
	"testing"

	"github.com/digitalocean/go-libvirt"
	"github.com/hashicorp/go-hclog"

	"github.com/egress-proxies/egress/provider/kvm/dial"
)

// packet is one libvirt RPC packet.
type packet struct {
	program, procedure, kind, serial, status uint32
	payload                                  []byte
}

// daemon is a libvirtd that knows the wire and little else: it opens
// connections, and answers every call by its handler.
type daemon struct {
	t        *testing.T
	listener net.Listener
	// handle answers a call; false leaves it without an answer.
	handle func(d *daemon, conn net.Conn, p packet) bool

	mu       sync.Mutex // guards the fields below
	calls    []packet
	conns    []net.Conn
	accepted int
}

// The procedures that a test tells apart (remote_protocol.x).
const (
	procOpen      = 1
	procAuthList  = 66
	procVolumeXML = 99

	procDownload = 209
)

func newDaemon(t *testing.T, handle func(d *daemon, conn net.Conn, p packet) bool) *daemon {
	t.Helper()
	listener, err := net.Listen("unix", filepath.Join(t.TempDir(), "sock"))
	if err != nil {
		t.Fatal(err)
	}
	d := &daemon{t: t, listener: listener, handle: handle}
	var wait sync.WaitGroup
	wait.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			d.mu.Lock()
			d.accepted++
			d.conns = append(d.conns, conn)
			d.mu.Unlock()
			wait.Go(func() { d.serve(conn) })
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		d.cut()
		wait.Wait()
	})
	return d
}

// cut closes every connection, as a restart of the daemon does.
func (d *daemon) cut() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, conn := range d.conns {
		_ = conn.Close()
	}
	d.conns = nil
}

func (d *daemon) connections() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.accepted
}

// seen counts the calls other than those that open a connection.
func (d *daemon) seen() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.calls)
}

func (d *daemon) serve(conn net.Conn) {
	for {
		p, err := readPacket(conn)
		if err != nil {
			return
		}
		switch {
		case p.kind != 0: // stream packets
			d.handle(d, conn, p)
		case p.procedure == procAuthList:
			d.reply(conn, p, []byte{0, 0, 0, 1, 0, 0, 0, 0}) // one way: none
		case p.procedure == procOpen:
			d.reply(conn, p, nil)
		default:
			d.mu.Lock()
			d.calls = append(d.calls, p)
			d.mu.Unlock()
			d.handle(d, conn, p)
		}
	}
}

func readPacket(r io.Reader) (packet, error) {
	var head [headerSize]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return packet{}, err
	}
	word := func(i int) uint32 { return binary.BigEndian.Uint32(head[4*i:]) }
	p := packet{program: word(1), procedure: word(3), kind: word(4), serial: word(5), status: word(6)}
	p.payload = make([]byte, word(0)-headerSize)
	_, err := io.ReadFull(r, p.payload)
	return p, err
}

func (d *daemon) write(conn net.Conn, p packet, kind, status uint32, payload []byte) {
	var b bytes.Buffer
	for _, word := range []uint32{uint32(headerSize + len(payload)), p.program, 1, p.procedure, kind, p.serial, status} {
		_ = binary.Write(&b, binary.BigEndian, word)
	}
	b.Write(payload)
	_, _ = conn.Write(b.Bytes()) // the client may be gone, which it tells itself
}

func (d *daemon) reply(conn net.Conn, p packet, payload []byte) { d.write(conn, p, 1, 0, payload) }

// fail answers with a libvirt error.
func (d *daemon) fail(conn net.Conn, p packet, code libvirt.ErrorNumber, message string) {
	var b bytes.Buffer
	for _, word := range []uint32{uint32(code), 0, 1, uint32(len(message))} {
		_ = binary.Write(&b, binary.BigEndian, word)
	}
	b.WriteString(message)
	b.Write(make([]byte, (4-len(message)%4)%4))
	b.Write(make([]byte, 64)) // level and the rest
	d.write(conn, p, 1, 1, b.Bytes())
}

// finish confirms the end of a stream, and says nothing to its data.
func (d *daemon) finish(conn net.Conn, p packet) bool {
	if p.kind == 3 && p.status == 0 {
		d.write(conn, p, 3, 0, nil)
	}
	return true
}

// host is a Host connected to the daemon; its log goes to w.
func (d *daemon) host(t *testing.T, w io.Writer) *Host {
	t.Helper()
	if w == nil {
		w = io.Discard
	}
	h := New(Options{
		Name:   "a",
		Target: dial.Target{Address: dial.Address{Socket: d.listener.Addr().String()}},
		Logger: hclog.New(&hclog.LoggerOptions{Level: hclog.Trace, Output: w, JSONFormat: true}),
	})
	t.Cleanup(h.Close)
	return h
}
