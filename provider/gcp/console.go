package gcp

import (
	"context"
	"fmt"
	"io"
	"time"

	"cloud.google.com/go/compute/apiv1/computepb"
	"google.golang.org/protobuf/proto"

	"github.com/egress-proxies/egress/provider"
)

// Console follows the first serial port. Google keeps its last mebibyte, also
// of a machine that is off.
func (p *Provider) Console(ctx context.Context, ref provider.Ref, offset int64) (io.ReadCloser, error) {
	machine, err := p.locate(ctx, ref)
	if err != nil {
		return nil, err
	}
	p.describe(ctx, machine)
	ctx, cancel := context.WithCancel(ctx)
	c := &console{ctx: ctx, cancel: cancel, p: p, offset: offset, wait: p.timing.console,
		ref: provider.Ref{Name: ref.Name, Zone: zoneOf(machine.GetZone())}}
	if offset < 0 {
		output, err := c.fetch(-1)
		if err != nil {
			cancel()
			return nil, err
		}
		c.offset = output.GetNext()
	}
	return c, nil
}

// console reads on as the guest writes.
type console struct {
	ctx    context.Context
	cancel context.CancelFunc
	p      *Provider
	ref    provider.Ref
	offset int64
	wait   time.Duration // before the next look
	buffer []byte
}

// Read waits for more. io.EOF comes once the machine is off and all was read.
func (c *console) Read(b []byte) (int, error) {
	for len(c.buffer) == 0 {
		ended, err := c.ended()
		if err != nil {
			return 0, c.cause(err)
		}
		// After the state: what came before the end is not missed.
		output, err := c.fetch(c.offset)
		switch {
		case ended && err != nil, provider.Classify(err) == provider.ErrNotFound:
			return 0, io.EOF
		case err != nil:
			return 0, c.cause(err)
		}
		c.buffer, c.offset = []byte(output.GetContents()), max(output.GetNext(), 0)
		if len(c.buffer) > 0 {
			c.wait = c.p.timing.console
			break
		}
		if ended {
			return 0, io.EOF
		}
		if err := c.pause(); err != nil {
			return 0, err
		}
		c.wait = min(2*c.wait, c.p.timing.consoleIdle)
	}
	n := copy(b, c.buffer)
	c.buffer = c.buffer[n:]
	return n, nil
}

// pause waits for the next look, or until some machine ends: its last words are
// fetched before the task's log is closed.
func (c *console) pause() error {
	timer := time.NewTimer(c.wait)
	defer timer.Stop()
	for {
		ending := c.p.seen.ending()
		if state, _ := c.p.seen.state(c.ref.Name, c.p.timing.consoleIdle); state == provider.Stopped {
			return nil
		}
		select {
		case <-timer.C:
			return nil
		case <-ending:
		case <-c.ctx.Done():
			return context.Cause(c.ctx)
		}
	}
}

// ended uses what the watch knows, and asks when nobody watches.
func (c *console) ended() (bool, error) {
	if state, known := c.p.seen.state(c.ref.Name, 2*c.p.timing.consoleIdle); known && state != provider.Unknown {
		return state == provider.Stopped, nil
	}
	instance, err := c.p.Get(c.ctx, c.ref)
	if provider.Classify(err) == provider.ErrNotFound {
		return true, nil
	}
	return instance.State == provider.Stopped, err
}

func (c *console) fetch(start int64) (*computepb.SerialPortOutput, error) {
	bounded, cancel, opened, err := c.p.call(c.ctx)
	if err != nil {
		return nil, err
	}
	defer cancel()
	output, err := opened.instances.GetSerialPortOutput(bounded, &computepb.GetSerialPortOutputInstanceRequest{
		Project: c.p.settings.Project, Zone: c.ref.Zone, Instance: c.ref.Name, Port: proto.Int32(1), Start: &start,
	}, c.p.retry())
	return output, translate(fmt.Sprintf("read the serial port of %s", c.ref), err)
}

// cause is the context's own error when that is why a call failed.
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
