package virt

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
)

// libvirt's RPC packets (virnetprotocol.x): a length and a header, together
// seven big-endian 32-bit numbers, then the payload.
const (
	headerSize = 28
	// maxPacket is libvirt's VIR_NET_MESSAGE_MAX with room for the header.
	maxPacket = 32<<20 + headerSize

	typeReply  = 1
	typeStream = 3

	statusError    = 1
	statusContinue = 2
)

// wire is the connection under go-libvirt: it knows at once when it is gone,
// remembers the header of the last call for streams with holes, and keeps away
// what would block go-libvirt for good.
type wire struct {
	net.Conn
	once sync.Once
	gone chan struct{}

	mu   sync.Mutex // guards last
	last [headerSize]byte

	// The reading side belongs to go-libvirt's one reader.
	packet []byte // what is left of the packet being read
	failed uint32 // the serial of the last call that was answered by an error
	// replied is the serial of the last call that was answered at all, and early
	// what came of a stream before the answer to the call that opened it.
	replied uint32
	early   [][]byte
}

// Dial is go-libvirt's way of getting a connection; it happens once.
func (w *wire) Dial() (net.Conn, error) { return w, nil }

// Read gives the packets one after the other.
func (w *wire) Read(b []byte) (int, error) {
	if len(w.packet) == 0 {
		packet, err := w.next()
		if err != nil {
			w.leave()
			return 0, err
		}
		w.packet = packet
	}
	n := copy(b, w.packet)
	w.packet = w.packet[n:]
	return n, nil
}

// next reads a packet. A second answer to a call that has failed is dropped:
// an upload that is refused while data is on its way can get one, and
// go-libvirt, which has stopped listening, would wait on it with its lock held.
//
// A stream's packets wait for the answer to their call: libvirtd sends the two
// from different threads, and a download's data can overtake. go-libvirt would
// take the data for the answer and the answer for the stream's end, and then
// wait with its lock held, or return as if nothing had been there.
func (w *wire) next() ([]byte, error) {
	if len(w.early) > 0 && serial(w.early[0]) == w.replied {
		packet := w.early[0]
		w.early = w.early[1:]
		return packet, nil
	}
	for {
		packet, err := w.receive()
		if err != nil {
			return nil, err
		}
		call, kind := serial(packet), binary.BigEndian.Uint32(packet[16:])
		switch {
		case call != 0 && call == w.failed:
			continue
		case kind == typeStream && call != w.replied:
			w.early = append(w.early, packet)
			continue
		case kind == typeReply:
			w.replied = call
		}
		if binary.BigEndian.Uint32(packet[24:]) == statusError {
			w.failed, w.early = call, nil
		}
		return packet, nil
	}
}

// serial says to which call a packet belongs.
func serial(packet []byte) uint32 { return binary.BigEndian.Uint32(packet[20:]) }

// receive reads a packet off the connection.
func (w *wire) receive() ([]byte, error) {
	var length [4]byte
	if _, err := io.ReadFull(w.Conn, length[:]); err != nil {
		return nil, err
	}
	size := binary.BigEndian.Uint32(length[:])
	if size < headerSize || size > maxPacket {
		return nil, fmt.Errorf("a packet of %d bytes: this is not libvirt", size)
	}
	packet := make([]byte, size)
	copy(packet, length[:])
	_, err := io.ReadFull(w.Conn, packet[4:])
	return packet, err
}

// Write keeps the header of a whole packet.
func (w *wire) Write(b []byte) (int, error) {
	if len(b) >= headerSize && int(binary.BigEndian.Uint32(b)) == len(b) {
		w.mu.Lock()
		copy(w.last[:], b)
		w.mu.Unlock()
	}
	n, err := w.Conn.Write(b)
	if err != nil {
		w.leave()
	}
	return n, err
}

// Close ends the connection; a second close is fine.
func (w *wire) Close() error {
	w.leave()
	err := w.Conn.Close()
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

func (w *wire) leave() { w.once.Do(func() { close(w.gone) }) }
