package probe

import "context"

// Callbacks hear what a Run finds, one call at a time, from Run's goroutine.
type Callbacks struct {
	// OnTransition is called for each transition.
	OnTransition func(Transition)
	// OnVerdict, which may be nil, is called for each probe, before
	// OnTransition; for metrics.
	OnVerdict func(Verdict)
}

// Await probes until the proxy works, quickly at first and then at the interval,
// and returns the verdict that was OK. OnVerdict hears about each probe; it may
// be nil. When ctx ends first, Await returns the last verdict there was, and
// the cause of ctx's end.
func (p *Prober) Await(ctx context.Context, onVerdict func(Verdict)) (Verdict, error) {
	return Verdict{}, nil
}

// Run probes at the interval until ctx ends, with some jitter, so that many
// proxies on a node don't probe in step. initial is what is known: the verdict
// of Await, or the zero Verdict when nothing is.
func (p *Prober) Run(ctx context.Context, initial Verdict, callbacks Callbacks) {
}
