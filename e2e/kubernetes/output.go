package kubernetes

import (
	"context"
	"sync"
)

// output is what a container printed.
type output struct {
	mu      sync.Mutex // guards what follows
	text    []byte
	more    chan struct{} // closed with the next change
	printed bool          // nothing will be added
}

func newOutput() *output { return &output{more: make(chan struct{})} }

// Write adds to it.
func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.text = append(o.text, p...)
	o.tell()
	return len(p), nil
}

func (o *output) close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.printed = true
	o.tell()
}

// tell wakes those who read; o.mu is held.
func (o *output) tell() {
	close(o.more)
	o.more = make(chan struct{})
}

// from is what was printed after offset, and a channel that is closed when there
// is more; it is nil when there never will be.
func (o *output) from(offset int) (text []byte, more <-chan struct{}) {
	o.mu.Lock()
	defer o.mu.Unlock()
	text = o.text[min(offset, len(o.text)):]
	if o.printed {
		return text, nil
	}
	return text, o.more
}

// follow hands on what is printed, from offset on, until its end.
func (o *output) follow(ctx context.Context, offset int, to func([]byte) error) error {
	for {
		text, more := o.from(offset)
		if err := to(text); err != nil {
			return err
		}
		offset += len(text)
		if more == nil {
			return nil
		}
		select {
		case <-more:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
