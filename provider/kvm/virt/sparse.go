package virt

import (
	"bytes"
	"encoding/binary"
	"io"
)

// libvirt's stream protocol (virnetprotocol.x): a hole is a packet of a type of
// its own, whose payload is a length and flags. go-libvirt does not know it.
const (
	typeStreamHole = 6
	holeSize       = headerSize + 12
)

// block is the grain of zero detection: a qcow2 cluster, and a multiple of any
// file system's block.
const block = 64 << 10

// chunk is how much is sent in one packet. libvirt takes up to 4 MiB.
const chunk = 16 * block

var zeros [block]byte

// sparse is a reader for go-libvirt's upload that gives the data of a source
// and sends the runs of zeros between as holes, past go-libvirt, straight to
// the wire. That is sound because the connection carries nothing but this
// stream, and go-libvirt reads between two packets, never during one.
type sparse struct {
	source  io.Reader
	wire    *wire
	counter *counter
	buffer  []byte // what was read and not yet given
	space   []byte // the memory of buffer
	hole    int64  // zeros before buffer that are not yet sent
	err     error  // why the source ended
}

func newSparse(source io.Reader, wire *wire, counter *counter) *sparse {
	return &sparse{source: source, wire: wire, counter: counter, space: make([]byte, chunk)}
}

// Read gives the next run of data, after sending the hole before it.
func (s *sparse) Read(b []byte) (int, error) {
	for {
		for len(s.buffer) > 0 {
			first := s.buffer[:min(block, len(s.buffer))]
			if !bytes.Equal(first, zeros[:len(first)]) {
				break
			}
			s.hole += int64(len(first))
			s.buffer = s.buffer[len(first):]
		}
		if len(s.buffer) > 0 {
			return s.give(b)
		}
		if s.err != nil {
			if s.err == io.EOF {
				if err := s.flush(); err != nil {
					return 0, err
				}
			}
			return 0, s.err
		}
		n, err := io.ReadFull(s.source, s.space)
		if err == io.ErrUnexpectedEOF {
			err = io.EOF
		}
		s.buffer, s.err = s.space[:n], err
	}
}

// give copies blocks up to the next one of zeros.
func (s *sparse) give(b []byte) (int, error) {
	if err := s.flush(); err != nil {
		return 0, err
	}
	n := 0
	for len(s.buffer) > 0 {
		next := s.buffer[:min(block, len(s.buffer))]
		if len(b)-n < len(next) || (n > 0 && bytes.Equal(next, zeros[:len(next)])) {
			break
		}
		n += copy(b[n:], next)
		s.buffer = s.buffer[len(next):]
	}
	s.counter.data.Add(int64(n))
	return n, nil
}

// flush sends the pending hole. The last hole makes the file as long as the
// source.
func (s *sparse) flush() error {
	if s.hole == 0 {
		return nil
	}
	s.wire.mu.Lock()
	call := s.wire.last
	s.wire.mu.Unlock()
	packet := make([]byte, 0, holeSize)
	packet = binary.BigEndian.AppendUint32(packet, holeSize)
	packet = append(packet, call[4:16]...) // program, version, procedure
	packet = binary.BigEndian.AppendUint32(packet, typeStreamHole)
	packet = append(packet, call[20:24]...) // serial
	packet = binary.BigEndian.AppendUint32(packet, statusContinue)
	packet = binary.BigEndian.AppendUint64(packet, uint64(s.hole))
	packet = binary.BigEndian.AppendUint32(packet, 0)
	if _, err := s.wire.Conn.Write(packet); err != nil {
		return err
	}
	s.counter.holes.Add(s.hole)
	s.hole = 0
	return nil
}
