package probe

import (
	"context"
	"math/rand/v2"
	"time"
)

// The pace of Await: a proxy usually works within a second or two of having an
// address, and a start should not wait an interval longer than it must.
const (
	firstPause = 500 * time.Millisecond
	pauseLimit = 5 * time.Second
)

// jitter is the share of the interval by which two probes may be closer or
// further apart.
const jitter = 0.1

// Callbacks hear what a Run finds, one call at a time, from Run's goroutine.
type Callbacks struct {
	// OnTransition is called for each transition.
	OnTransition func(Transition)
	// OnVerdict, which may be nil, is called for each probe, before
	// OnTransition; for metrics.
	OnVerdict func(Verdict)
	// OnIdle, which may be nil, is called at the start and about every second
	// between two probes, so never while one is under way.
	OnIdle func()
}

// idle is the time between two calls of OnIdle.
const idle = time.Second

// Await probes until the proxy works, quickly at first and then less often, and
// returns the verdict that was OK. onVerdict hears about each probe; it may be
// nil. When ctx ends first, Await returns the last verdict there was, and the
// cause of ctx's end.
func (p *Prober) Await(ctx context.Context, onVerdict func(Verdict)) (Verdict, error) {
	return await(ctx, p.Once, min(p.config.Interval, pauseLimit), onVerdict)
}

// Run probes at the interval until ctx ends, with some jitter, so that many
// proxies on a node don't probe in step. initial is what is known: the verdict
// of Await, or the zero Verdict when nothing is.
func (p *Prober) Run(ctx context.Context, initial Verdict, callbacks Callbacks) {
	tracker := NewTracker(p.config.Successes, p.config.Failures, initial)
	run(ctx, p.Once, p.config.Interval, tracker, callbacks)
}

func await(ctx context.Context, once func(context.Context) Verdict, limit time.Duration, onVerdict func(Verdict)) (Verdict, error) {
	var last Verdict
	for pause := min(firstPause, limit); ; pause = min(pause*3/2, limit) {
		verdict := once(ctx)
		if ctx.Err() != nil {
			return last, context.Cause(ctx)
		}
		last = verdict
		if onVerdict != nil {
			onVerdict(verdict)
		}
		if verdict.OK {
			return verdict, nil
		}
		if !sleep(ctx, pause) {
			return last, context.Cause(ctx)
		}
	}
}

func run(ctx context.Context, once func(context.Context) Verdict, interval time.Duration, tracker *Tracker, callbacks Callbacks) {
	// The first probe comes anywhere in the first interval: after a restart of
	// the plugin all loops of a node start at the same moment.
	next := time.Now().Add(rand.N(interval))
	for rest(ctx, next, callbacks.OnIdle) {
		next = time.Now().Add(spread(interval))
		verdict := once(ctx)
		if ctx.Err() != nil {
			// Cut short, it says nothing about the proxy.
			return
		}
		if callbacks.OnVerdict != nil {
			callbacks.OnVerdict(verdict)
		}
		if transition, ok := tracker.Observe(verdict); ok && callbacks.OnTransition != nil {
			callbacks.OnTransition(transition)
		}
	}
}

func spread(interval time.Duration) time.Duration {
	return time.Duration(float64(interval) * (1 + jitter*(2*rand.Float64()-1)))
}

// rest waits until next and calls onIdle meanwhile. It is false when ctx ended
// first.
func rest(ctx context.Context, next time.Time, onIdle func()) bool {
	if onIdle == nil {
		return sleep(ctx, time.Until(next))
	}
	for ctx.Err() == nil {
		onIdle()
		left := time.Until(next)
		if left <= idle {
			return sleep(ctx, left)
		}
		sleep(ctx, idle)
	}
	return false
}

// sleep waits and is false when ctx ended first.
func sleep(ctx context.Context, pause time.Duration) bool {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return ctx.Err() == nil
	}
}
