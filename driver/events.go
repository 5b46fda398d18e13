package driver

import (
	"context"
	"sync"
	"time"

	"github.com/hashicorp/nomad/plugins/drivers"
)

// eventBuffer is how many events wait for an agent that reads slowly; more are
// dropped, since they are for people and a start must not wait for them.
const eventBuffer = 64

// events hands the events of the tasks to whoever listens. Unlike Nomad's own
// eventer it needs no goroutine and never makes the sender wait.
type events struct {
	mu        sync.Mutex // guards listeners, and sending to them
	listeners map[chan *drivers.TaskEvent]struct{}
}

// listen gives the events from now until ctx ends, and then closes the channel:
// the RPC layer waits for nothing else.
func (e *events) listen(ctx context.Context) <-chan *drivers.TaskEvent {
	ch := make(chan *drivers.TaskEvent, eventBuffer)
	e.mu.Lock()
	if e.listeners == nil {
		e.listeners = make(map[chan *drivers.TaskEvent]struct{})
	}
	e.listeners[ch] = struct{}{}
	e.mu.Unlock()
	context.AfterFunc(ctx, func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		delete(e.listeners, ch)
		close(ch)
	})
	return ch
}

// emit tells an event of a task.
func (e *events) emit(cfg *drivers.TaskConfig, message string) {
	event := &drivers.TaskEvent{
		TaskID: cfg.ID, AllocID: cfg.AllocID, TaskName: cfg.Name, Timestamp: time.Now(), Message: message,
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for ch := range e.listeners {
		select {
		case ch <- event:
		default:
		}
	}
}

// maxProgress is how many events a start may cause: Nomad keeps the last ten
// of a task, and has some of its own for each start.
const maxProgress = 6

// progressGaps are the least times since the event before: the start of a small
// proxy says little, and a long download is heard of now and then to its end.
var progressGaps = []time.Duration{2 * time.Second, 15 * time.Second, time.Minute}

// progress thins out what a start reports. It is safe for concurrent use.
type progress struct {
	emit func(message string)
	now  func() time.Time

	mu       sync.Mutex // guards what follows
	last     time.Time
	sent     int
	reported int
	noticed  bool
}

// say tells a milestone, of which a start has at most three.
func (p *progress) say(message string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.send(message)
}

// report tells how far a step is, unless the last event is too recent.
func (p *progress) report(message string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.reported == len(progressGaps) || p.now().Sub(p.last) < progressGaps[p.reported] {
		return
	}
	p.reported++
	p.send(message)
}

// notice tells what may not get lost; a start has at most one, beside the others.
func (p *progress) notice(message string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.noticed {
		p.noticed = true
		p.last = p.now()
		p.emit(message)
	}
}

// send is called with the lock held.
func (p *progress) send(message string) {
	if p.sent == maxProgress {
		return
	}
	p.sent++
	p.last = p.now()
	p.emit(message)
}
