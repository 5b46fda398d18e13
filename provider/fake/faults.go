package fake

import (
	"context"
	"errors"
	"sync"
)

// Step is a place where a fault can be injected.
type Step string

// The steps. Those of Create come in the order in which they are passed.
const (
	StepDisk    Step = "disk"
	StepSeed    Step = "seed"
	StepDefine  Step = "define"
	StepStart   Step = "start"
	StepAddress Step = "address" // failed, the instance runs without an address
	StepGet     Step = "get"
	StepDelete  Step = "delete"
	StepList    Step = "list"
	StepStop    Step = "stop"
	StepWatch   Step = "watch"
	StepExec    Step = "exec"
	StepStats   Step = "stats"
	StepRotate  Step = "rotate"
)

// CreateSteps are the steps of Create that can leave something behind.
var CreateSteps = []Step{StepDisk, StepSeed, StepDefine, StepStart}

// errInterrupted ends a Create that Interrupt cut off.
var errInterrupted = errors.New("fake: the plugin died here")

// faults are the orders that were given. The zero value injects nothing.
type faults struct {
	mu          sync.Mutex // guards the maps
	fail        map[Step]*failure
	hold        map[Step]*hold
	interrupted map[Step]bool
}

type failure struct {
	times int // below zero is for ever
	err   error
}

type hold struct {
	reached  chan struct{}
	once     sync.Once
	released chan struct{}
}

// Fail makes the next times passes of step return err; below zero, all.
func (p *Provider) Fail(step Step, times int, err error) {
	p.faults.mu.Lock()
	defer p.faults.mu.Unlock()
	if p.faults.fail == nil {
		p.faults.fail = make(map[Step]*failure)
	}
	p.faults.fail[step] = &failure{times: times, err: err}
}

// Hold makes every pass of step wait until release is called or its context
// ends. reached is closed when the first one waits.
func (p *Provider) Hold(step Step) (reached <-chan struct{}, release func()) {
	p.faults.mu.Lock()
	defer p.faults.mu.Unlock()
	if p.faults.hold == nil {
		p.faults.hold = make(map[Step]*hold)
	}
	h := &hold{reached: make(chan struct{}), released: make(chan struct{})}
	p.faults.hold[step] = h
	return h.reached, sync.OnceFunc(func() {
		p.faults.mu.Lock()
		defer p.faults.mu.Unlock()
		if p.faults.hold[step] == h {
			delete(p.faults.hold, step)
		}
		close(h.released)
	})
}

// Interrupt makes Create stop after step without cleaning up, as if the plugin
// had been killed there. It works once.
func (p *Provider) Interrupt(step Step) {
	p.faults.mu.Lock()
	defer p.faults.mu.Unlock()
	if p.faults.interrupted == nil {
		p.faults.interrupted = make(map[Step]bool)
	}
	p.faults.interrupted[step] = true
}

// pass goes through a step: it waits while the step is held and gives the
// error that was ordered for it.
func (p *Provider) pass(ctx context.Context, step Step) error {
	p.faults.mu.Lock()
	held := p.faults.hold[step]
	p.faults.mu.Unlock()
	if held != nil {
		held.once.Do(func() { close(held.reached) })
		select {
		case <-held.released:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	p.faults.mu.Lock()
	defer p.faults.mu.Unlock()
	f := p.faults.fail[step]
	if f == nil || f.times == 0 {
		return nil
	}
	f.times--
	return f.err
}

// cut is true when Create must stop here.
func (p *Provider) cut(step Step) bool {
	p.faults.mu.Lock()
	defer p.faults.mu.Unlock()
	was := p.faults.interrupted[step]
	delete(p.faults.interrupted, step)
	return was
}
