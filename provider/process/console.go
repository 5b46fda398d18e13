package process

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/egress-proxies/egress/provider"
	"github.com/egress-proxies/egress/provider/process/supervise"
)

// Console follows what the process writes to its two output streams.
func (p *Provider) Console(ctx context.Context, ref provider.Ref, offset int64) (io.ReadCloser, error) {
	dir, err := p.find(ctx, ref)
	if err != nil {
		return nil, err
	}
	snapshot, err := supervise.Inspect(dir)
	if err != nil {
		return nil, provider.Transientf("read the state of %s: %w", ref.Name, err)
	}
	if snapshot.Phase == supervise.Absent || snapshot.Phase == supervise.Partial {
		return nil, provider.NotFoundf("no process instance %s on this node", ref.Name)
	}
	reader, err := supervise.NewOutputReader(dir, offset)
	if err != nil {
		return nil, provider.Transientf("read the output of %s: %w", ref.Name, err)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	return &console{ctx: ctx, cancel: cancel, dir: dir, reader: reader}, nil
}

// console waits for more where the reader of the files is at their end.
type console struct {
	ctx    context.Context
	cancel context.CancelCauseFunc
	dir    string
	reader *supervise.OutputReader
}

// The files are looked at again after a time that grows while nothing comes.
const (
	consolePollMin = 50 * time.Millisecond
	consolePollMax = time.Second
)

var errClosed = errors.New("the console was closed")

// Read waits for output.
func (c *console) Read(p []byte) (int, error) {
	wait := consolePollMin
	timer := time.NewTimer(wait)
	defer timer.Stop()
	for {
		if c.ctx.Err() != nil {
			return 0, context.Cause(c.ctx)
		}
		// Asked before the read: the last output comes before the end.
		snapshot, inspectErr := supervise.Inspect(c.dir)
		n, err := c.reader.Read(p)
		if n > 0 || (err != nil && !errors.Is(err, io.EOF)) {
			return n, err
		}
		if inspectErr == nil && snapshot.Phase != supervise.Running && snapshot.Phase != supervise.Starting {
			return 0, io.EOF
		}
		select {
		case <-timer.C:
			wait = min(2*wait, consolePollMax)
			timer.Reset(wait)
		case <-c.ctx.Done():
		}
	}
}

// Close ends a Read that waits. It must not be called twice.
func (c *console) Close() error {
	c.cancel(errClosed)
	return nil
}
