package kvm

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/egress-proxies/egress/provider"
	"github.com/egress-proxies/egress/provider/kvm/domain"
	"github.com/egress-proxies/egress/provider/kvm/virt"
)

const (
	// consolePoll is how often the console's file is looked at while the guest
	// writes, and consoleIdle once it has been silent for a while.
	consolePoll = time.Second
	consoleIdle = 5 * time.Second
	// consolePiece is how much is read at once.
	consolePiece = 256 << 10
	// consoleTimeout ends a read that got stuck, as downloads of a few bytes
	// over SSH were seen to do: the next one, on a new connection, is answered.
	consoleTimeout = 5 * time.Second
)

// Console follows the file into which QEMU writes what the guest says on its
// serial port. It is a volume of the pool, so that it is read in the same way
// on every host and from any offset.
func (p *Provider) Console(ctx context.Context, ref provider.Ref, offset int64) (io.ReadCloser, error) {
	if err := provider.CheckName(ref.Name); err != nil {
		return nil, err
	}
	h, d, err := p.find(ctx, ref)
	if err != nil {
		return nil, err
	}
	if _, err := p.owned(ctx, h, d); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	c := &console{ctx: ctx, cancel: cancel, h: h, d: d, volume: domain.VolumeName(p.env.Cluster, d.Name, domain.Console), offset: offset}
	if offset < 0 {
		size, err := h.VolumeSize(ctx, h.hostOptions.Pool, c.volume)
		if err != nil {
			cancel()
			return nil, err
		}
		c.offset = size
	}
	return c, nil
}

// console reads on as the file grows.
type console struct {
	ctx    context.Context
	cancel context.CancelFunc
	h      *host
	d      virt.Domain
	volume string
	offset int64
	buffer []byte
	silent int // looks in a row that found nothing
}

// Read waits for more. io.EOF comes once the machine is off and all was read.
func (c *console) Read(b []byte) (int, error) {
	for len(c.buffer) == 0 {
		ended, err := c.ended()
		if err != nil {
			return 0, c.cause(err)
		}
		// Looked at after the state: what came before the end is not missed.
		if err := c.more(); err != nil {
			return 0, c.cause(err)
		}
		if len(c.buffer) > 0 {
			c.silent = 0
			break
		}
		if ended {
			return 0, io.EOF
		}
		if err := c.pause(); err != nil {
			return 0, err
		}
	}
	n := copy(b, c.buffer)
	c.buffer = c.buffer[n:]
	return n, nil
}

func (c *console) ended() (bool, error) {
	state, err := c.h.DomainState(c.ctx, c.d)
	if errors.Is(err, provider.ErrNotFound) {
		return true, nil
	}
	return err == nil && state.Phase == virt.Off, err
}

// more reads the next piece. A file that is shorter than what was read has been
// rotated by virtlogd, which keeps 2 MiB: reading goes on at its beginning.
func (c *console) more() error {
	pool := c.h.hostOptions.Pool
	size, err := c.h.VolumeSize(c.ctx, pool, c.volume)
	if errors.Is(err, provider.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	if size < c.offset {
		c.offset = 0
	}
	if size == c.offset {
		return nil
	}
	ctx, cancel := context.WithTimeout(c.ctx, consoleTimeout)
	defer cancel()
	piece, err := c.h.ReadVolume(ctx, pool, c.volume, c.offset, min(size-c.offset, consolePiece))
	if errors.Is(err, provider.ErrNotFound) || (ctx.Err() != nil && c.ctx.Err() == nil) {
		return nil // looked for again at the next turn
	}
	c.offset += int64(len(piece))
	c.buffer = piece
	return err
}

func (c *console) pause() error {
	wait := consolePoll
	if c.silent++; c.silent > 10 {
		wait = consoleIdle
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-c.ctx.Done():
		return context.Cause(c.ctx)
	}
}

// cause prefers the end of the context to what it made fail.
func (c *console) cause(err error) error {
	if c.ctx.Err() != nil {
		return context.Cause(c.ctx)
	}
	return err
}

// Close ends a Read that waits.
func (c *console) Close() error {
	c.cancel()
	return nil
}
