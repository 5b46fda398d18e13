package image

import (
	"context"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/egress-proxies/egress/provider"
)

// chunkSize is what one step of a fan-out hands on. Chunks are never changed
// once they were handed on, so that all targets can share them.
const chunkSize = 256 << 10

// joinLimit is how much of a download is kept for a target that joins late.
// Tasks of one job start within moments of each other: 8 MiB is more than
// arrives between them, and little memory.
const joinLimit = 8 << 20

// feed carries the bytes to one target's upload, and watches that the target
// does its part.
type feed struct {
	chunks chan []byte
	// gone is closed when nobody reads any more.
	gone func()
	left chan struct{}
	// stop ends the upload itself, which may be stuck and not reading.
	stop context.CancelCauseFunc
	// patience is how long the target may do nothing while it is its turn;
	// turn runs then, and is stopped while the target waits for us.
	patience time.Duration
	turn     *time.Timer
	rest     []byte
	// end is what the reader gets after the last chunk; it is written before
	// chunks is closed.
	end error
	// seen is end once the reader got it, or why the upload was stopped.
	seen atomic.Pointer[error]
}

// newFeed holds what was sent already. It must be left in the end.
func newFeed(sent [][]byte, patience time.Duration, stop context.CancelCauseFunc) *feed {
	f := &feed{chunks: make(chan []byte, len(sent)+2), left: make(chan struct{}), stop: stop, patience: patience}
	f.gone = sync.OnceFunc(func() { close(f.left) })
	for _, chunk := range sent {
		f.chunks <- chunk
	}
	f.turn = time.AfterFunc(patience, f.impatient)
	return f
}

// impatient gives up on the target.
func (f *feed) impatient() {
	var err error = &uploadError{provider.Transientf("the host took no data for %s", f.patience)}
	f.seen.CompareAndSwap(nil, &err)
	f.stop(err)
	f.gone()
}

// leave says that the target is done, well or not.
func (f *feed) leave() {
	f.turn.Stop()
	f.gone()
}

// ours and theirs say whose turn it is.
func (f *feed) ours()   { f.turn.Stop() }
func (f *feed) theirs() { f.turn.Reset(f.patience) }

// Read is for the upload.
func (f *feed) Read(p []byte) (int, error) {
	f.ours()
	defer f.theirs()
	for len(f.rest) == 0 {
		chunk, ok := <-f.chunks
		if !ok {
			f.seen.CompareAndSwap(nil, &f.end)
			return 0, f.end
		}
		f.rest = chunk
	}
	n := copy(p, f.rest)
	f.rest = f.rest[n:]
	return n, nil
}

// complete is true when the reader was given all there is.
func (f *feed) complete() bool {
	seen := f.seen.Load()
	return seen != nil && *seen == io.EOF
}

// failure is why there was no proper end, as far as that was not the target's
// own word.
func (f *feed) failure() error {
	if seen := f.seen.Load(); seen != nil && *seen != io.EOF {
		return *seen
	}
	return nil
}

// fanout hands one stream to any number of feeds. All of them see every byte,
// or an error in place of the end.
type fanout struct {
	// patience is how long one target may do nothing.
	patience time.Duration

	mu     sync.Mutex // guards all below
	feeds  []*feed
	prefix [][]byte // what came so far, while that is little
	length int      // of prefix, in bytes
	late   bool     // prefix is not complete any more
}

// join adds a feed, or returns nil when too much has passed already.
func (f *fanout) join(stop context.CancelCauseFunc) *feed {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.late {
		return nil
	}
	added := newFeed(f.prefix, f.patience, stop)
	f.feeds = append(f.feeds, added)
	return added
}

// send hands on one chunk. A feed that was left is passed over.
func (f *fanout) send(ctx context.Context, chunk []byte) error {
	f.mu.Lock()
	if f.length+len(chunk) <= joinLimit && !f.late {
		f.prefix, f.length = append(f.prefix, chunk), f.length+len(chunk)
	} else {
		f.prefix, f.late = nil, true
	}
	feeds := f.feeds
	f.mu.Unlock()
	for _, feed := range feeds {
		select {
		case feed.chunks <- chunk:
		case <-feed.left:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// finish ends all feeds: io.EOF says that everything was sent and is right.
func (f *fanout) finish(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, feed := range f.feeds {
		feed.end = err
		close(feed.chunks)
	}
	f.feeds, f.prefix, f.late = nil, nil, true
}

// pump reads r to its end and counts the bytes.
func (f *fanout) pump(ctx context.Context, r io.Reader) (total int64, err error) {
	for {
		chunk := make([]byte, chunkSize)
		n, err := io.ReadFull(r, chunk)
		total += int64(n)
		if n > 0 {
			if err := f.send(ctx, chunk[:n]); err != nil {
				return total, err
			}
		}
		if err == io.EOF || err == io.ErrUnexpectedEOF {
			return total, nil
		}
		if err != nil {
			return total, err
		}
		if total > maxVirtualSize {
			return total, provider.Permanentf("the image is larger than %d bytes", int64(maxVirtualSize))
		}
	}
}
