package fingerprint

import (
	"context"
	"fmt"
	"time"

	"github.com/egress-proxies/egress/provider"
)

// lane runs the checks of one provider, one at a time. A check that outlives
// its round stays the only one, however many rounds pass: nothing piles up
// behind a host that hangs.
type lane struct {
	source Source
	// answers is nil when no check is under way. It holds one answer, so that
	// a check whose round is over can end.
	answers chan []provider.Verdict
	asked   time.Time
	// known are the last answer's verdicts.
	known []provider.Verdict
	// cancel ends the check under way.
	cancel context.CancelFunc
}

// ask starts a check unless one is under way, bounded by timeout.
func (l *lane) ask(ctx context.Context, timeout time.Duration) {
	if l.answers != nil {
		select {
		case <-l.answers:
			// It ended between the rounds: too old to count.
			l.done()
		default:
			return
		}
	}
	answers := make(chan []provider.Verdict, 1)
	l.answers, l.asked = answers, time.Now()
	checker, ok := l.source.Provider.(provider.Checker)
	if !ok {
		answers <- []provider.Verdict{{
			Target: "local", Ready: true, Reason: provider.Reachable,
			Message: "a provider of this type can't be checked and counts as ready",
		}}
		l.cancel = func() {}
		return
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	l.cancel = cancel
	go func() { // Ends with the check; lane.wait waits for it.
		answers <- checker.Check(ctx)
	}()
}

// done forgets the check that has ended.
func (l *lane) done() {
	l.cancel()
	l.answers = nil
}

// collect waits for the answer until ctx ends, which is early when the check may
// take longer than that. Without an answer, all targets that are known have
// timed out.
func (l *lane) collect(ctx context.Context, early bool) report {
	r := report{name: l.source.Name, kind: l.source.Type, early: early}
	verdicts, ok := l.answer(ctx)
	if ok {
		l.known = sortVerdicts(verdicts)
		r.verdicts = l.known
		return r
	}
	r.pending = true
	waited := time.Since(l.asked)
	known := l.known
	if len(known) == 0 {
		known = []provider.Verdict{{Target: unknown}}
	}
	for _, verdict := range known {
		r.verdicts = append(r.verdicts, provider.Verdict{
			Target: verdict.Target, Reason: provider.Timeout, Latency: waited,
			Message: fmt.Sprintf("the check has not ended after %v: look at the target and at the plugin's log",
				waited.Round(time.Second)),
		})
	}
	return r
}

func (l *lane) answer(ctx context.Context) ([]provider.Verdict, bool) {
	select {
	case verdicts := <-l.answers:
		l.done()
		return verdicts, true
	case <-ctx.Done():
	}
	// Both may have been true.
	select {
	case verdicts := <-l.answers:
		l.done()
		return verdicts, true
	default:
		return nil, false
	}
}

// wait ends the check under way and waits for that until ctx ends.
func (l *lane) wait(ctx context.Context) {
	if l.answers == nil {
		return
	}
	l.cancel()
	select {
	case <-l.answers:
		l.answers = nil
	case <-ctx.Done():
	}
}
