package image

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/egress-proxies/egress/provider"
)

// attempt reads a file once and hands it to the targets.
type attempt struct {
	flight *flight
	// id is what complete bases of this content are found by.
	id  string
	out fanout
	wg  sync.WaitGroup // the deliveries

	// begun is closed when the header was read, or when it can't be.
	begun  chan struct{}
	header header
	err    error // why it can't

	// size and digest are set before the feeds see the end.
	size   int64
	digest string
}

func newAttempt(f *flight, id string) *attempt {
	if id == "" {
		// Nothing tells whether what was fetched before is still the same.
		id = hashID("unknown", newNonce())
	}
	return &attempt{flight: f, id: id, begun: make(chan struct{}), out: fanout{patience: f.cache.options.TargetTimeout}}
}

// deliver adds a target, or returns false when it is too late for that. The
// caller holds cache.mu.
func (a *attempt) deliver(d *delivery) bool {
	ctx, cancel := context.WithCancelCause(d.ctx)
	feed := a.out.join(cancel)
	if feed == nil {
		cancel(nil)
		return false
	}
	a.wg.Add(1)
	go func() {
		defer a.wg.Done()
		defer cancel(nil)
		defer feed.leave()
		base, err := a.bring(ctx, d.target, feed)
		if errors.Is(err, errRedo) {
			return // the next attempt is for it too
		}
		a.flight.cache.mu.Lock()
		defer a.flight.cache.mu.Unlock()
		a.flight.settle(d, base, err)
	}()
	return true
}

// read reads all of the file. The targets see its end only when its digests
// are right.
func (a *attempt) read(ctx context.Context, in *opened) (err error) {
	defer func() {
		a.out.finish(endOf(err))
		a.begin(header{}, err) // in case it has not
	}()
	published := &publishedReader{from: contextReader{ctx, in}, flight: a.flight, digests: newDigests(a.flight.source)}
	plain, err := unpack(published)
	if err != nil {
		return published.reason(err)
	}
	defer plain.Close()
	disk := bufio.NewReaderSize(plain, headerLimit)
	head, err := disk.Peek(headerLimit)
	if err != nil && err != io.EOF {
		return published.reason(err)
	}
	h, err := a.check(head)
	if err != nil {
		return err
	}
	a.begin(h, nil)
	size, err := a.out.pump(ctx, disk)
	if err != nil {
		return published.reason(err)
	}
	// What follows the compressed data belongs to the published file as well.
	if _, err := io.Copy(io.Discard, published); err != nil {
		return published.reason(err)
	}
	if err := published.digests.verify(a.flight.source); err != nil {
		if in.resumed() {
			return fmt.Errorf("%w: joined from parts, %w", errRedo, err)
		}
		return err
	}
	if a.size = h.virtualSize; a.size == 0 {
		a.size = size
	}
	a.digest = published.digests.short()
	return nil
}

// check judges the first bytes of the disk.
func (a *attempt) check(head []byte) (header, error) {
	if len(head) == 0 {
		return header{}, provider.Transientf("the file is empty")
	}
	h, err := parseHeader(head)
	if err != nil {
		return header{}, provider.Permanentf("%w", err)
	}
	if want := a.flight.source.Format; want != "" && want != h.format {
		return header{}, provider.Permanentf("format %q: the file's header says %s", want, h.format)
	}
	return h, nil
}

// begin lets the deliveries go on; only its first call counts.
func (a *attempt) begin(h header, err error) {
	select {
	case <-a.begun:
	default:
		a.header, a.err = h, err
		close(a.begun)
	}
}

// endOf is what the targets' readers get at the end.
func endOf(err error) error {
	if err == nil {
		return io.EOF
	}
	return err
}

// bring puts the image on one target.
func (a *attempt) bring(ctx context.Context, target Target, feed *feed) (Base, error) {
	base, err := find(ctx, target, a.id)
	if err == nil {
		a.flight.cache.used(ctx, target, base)
		return base, nil
	}
	if !errors.Is(err, provider.ErrNotFound) {
		return Base{}, a.blame(feed, err)
	}
	feed.ours()
	select {
	case <-a.begun:
	case <-ctx.Done():
		return Base{}, context.Cause(ctx)
	}
	feed.theirs()
	if a.err != nil {
		return Base{}, a.err
	}
	a.flight.cache.removeOwn(ctx, target, a.id)
	base, err = a.upload(ctx, target, feed)
	if err != nil {
		return Base{}, a.blame(feed, err)
	}
	return base, nil
}

// blame finds the true reason of a target's error: the file's trouble, our
// patience, or the target itself.
func (a *attempt) blame(feed *feed, err error) error {
	if cause := feed.failure(); cause != nil {
		return cause
	}
	return &uploadError{err}
}

// upload fills a new volume and marks it complete; if it can't, nothing stays.
func (a *attempt) upload(ctx context.Context, target Target, feed *feed) (base Base, err error) {
	c := a.flight.cache
	name := baseName{id: a.id, owner: c.owner, nonce: newNonce(), format: a.header.format}
	defer c.writing(name)()
	defer func() {
		if err != nil {
			c.remove(ctx, target, name.String())
		}
	}()
	// The volume is raw to libvirt also when qcow2 is written to it: libvirt
	// would otherwise make an empty qcow2 file only to have it overwritten.
	if _, err := target.Create(ctx, NewVolume{Name: name.String(), Format: string(Raw)}); err != nil {
		return Base{}, err
	}
	if err := target.Upload(ctx, name.String(), feed); err != nil {
		return Base{}, err
	}
	if !feed.complete() {
		return Base{}, fmt.Errorf("%s: the upload ended before the data did", target)
	}
	volume, err := target.Lookup(ctx, name.String())
	if err != nil {
		return Base{}, err
	}
	m := marker{base: name, virtualSize: a.size, digest: a.digest}
	ready, err := target.Create(ctx, NewVolume{Name: m.String(), Format: string(Raw)})
	if err != nil {
		return Base{}, err
	}
	return m.found(target, volume, ready), nil
}

// uploadError is the target's fault and not the file's.
type uploadError struct{ err error }

func (e *uploadError) Error() string { return e.err.Error() }
func (e *uploadError) Unwrap() error { return e.err }
