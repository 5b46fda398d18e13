package virt

import (
	"context"
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/digitalocean/go-libvirt"
)

// Upload writes r over a volume from its first byte. Runs of zeros become
// holes on the host and cost nothing on the way. It returns nil only after the
// daemon confirmed the end. r is not read any more once it has returned.
//
// It has a connection of its own, over the link that all share: ending ctx
// closes that one alone, and whatever the daemon is slow with holds up nobody.
func (h *Host) Upload(ctx context.Context, pool, name string, r io.Reader) error {
	counter := &counter{}
	given := func() []any {
		return []any{"pool", pool, "volume", name, "bytes", counter.data.Load(), "holes", counter.holes.Load()}
	}
	return h.stream(ctx, "StorageVolUpload", given, func(s *session) error {
		source := &guarded{source: newSparse(r, s.wire, counter), failed: s.close}
		context.AfterFunc(ctx, func() { _ = source.shut() }) // it only shuts
		err := s.libvirt.StorageVolUpload(handle(pool, name), source, 0, 0, libvirt.StorageVolUploadSparseStream)
		// A failure of the source is the cause of whatever the stream says then.
		if cause := source.shut(); cause != nil {
			return cause
		}
		return err
	})
}

// counter is what an upload sent, in bytes.
type counter struct{ data, holes atomic.Int64 }

// stream runs a call that moves data, on a connection of its own. When ctx
// ends it closes the connection and does not wait for go-libvirt, which can
// block for good on an answer that it did not expect.
func (h *Host) stream(ctx context.Context, rpc string, given func() []any, fn func(*session) error) error {
	begin := time.Now()
	s, err := h.open(ctx)
	if err == nil {
		answer := make(chan error, 1)
		go func() { answer <- fn(s) }()
		select {
		case err = <-answer:
		case <-ctx.Done():
			err = context.Cause(ctx)
		}
		s.close()
	}
	h.trace(rpc, given(), begin, err)
	return h.translate(rpc, err)
}

// guarded is a reader that go-libvirt may still hold after a failed upload has
// returned: once shut it is not read again.
type guarded struct {
	source io.Reader
	failed func() // called once the source gave an error

	mu     sync.Mutex // guards the fields below; not held while reading
	closed bool
	err    error
}

// errShut is told to go-libvirt's leftover goroutine, and to nobody else.
var errShut = errors.New("the upload is over")

func (g *guarded) Read(b []byte) (int, error) {
	g.mu.Lock()
	closed := g.closed
	g.mu.Unlock()
	if closed {
		return 0, errShut
	}
	n, err := g.source.Read(b)
	if err != nil && err != io.EOF {
		g.mu.Lock()
		g.err = err
		g.mu.Unlock()
		// go-libvirt would now wait for an answer that may never come.
		g.failed()
	}
	return n, err
}

// shut stops the reading and gives the error that the source had.
func (g *guarded) shut() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = true
	return g.err
}
