package fingerprint

import (
	"context"
	"sync"
	"time"
)

// grace is how much longer than the timeout of its checks a round lasts, as a
// part of it: providers answer when the timeout ends, and what does not is hung.
const grace = 20 // a twentieth

// Monitor checks its sources round after round.
type Monitor struct {
	options Options
	lanes   []*lane // used by the one who runs rounds
	board   *board  // likewise

	mu      sync.Mutex    // guards what follows
	changed chan struct{} // closed and replaced with every round
	ended   bool
	taken   bool // a round has been
	result  Result
	targets []Target
}

// New makes a monitor that has not begun to check.
func New(sources []Source, options Options) *Monitor {
	m := &Monitor{options: options.withDefaults(), board: newBoard(), changed: make(chan struct{})}
	for _, source := range sources {
		m.lanes = append(m.lanes, &lane{source: source})
	}
	return m
}

// Run checks until ctx ends. It may be called once. A check that ignores the
// end of its context is not waited for longer than a twentieth of the timeout.
func (m *Monitor) Run(ctx context.Context) {
	defer m.end()
	wait := min(m.options.FirstWait, m.limit())
	for {
		began := time.Now()
		early := wait < m.limit()
		pending := m.round(ctx, wait)
		if ctx.Err() != nil {
			return
		}
		pause := m.options.Interval - time.Since(began)
		if pending && early {
			pause = 0 // Now wait for the rest of it.
		}
		wait = m.limit()
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
	}
}

// Once makes one full round and gives its verdicts, in the order of the sources
// and of their targets. It must not be called beside Run.
func (m *Monitor) Once(ctx context.Context) []Target {
	m.round(ctx, m.limit())
	return m.Targets()
}

// limit is how long a round lasts at most.
func (m *Monitor) limit() time.Duration { return m.options.Timeout + m.options.Timeout/grace }

// round asks all sources at once and waits for them; pending is true when one
// has not answered.
func (m *Monitor) round(ctx context.Context, wait time.Duration) (pending bool) {
	limit, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	for _, lane := range m.lanes {
		lane.ask(ctx, m.options.Timeout)
	}
	reports := make([]report, 0, len(m.lanes))
	for _, lane := range m.lanes {
		report := lane.collect(limit, wait < m.limit())
		pending = pending || report.pending
		reports = append(reports, report)
	}
	if ctx.Err() != nil {
		return pending // What was cut off says nothing of the targets.
	}
	m.log(m.board.take(reports))
	m.show(reports)
	return pending
}

// log tells each transition once.
func (m *Monitor) log(changes []transition) {
	for _, change := range changes {
		log := m.options.Logger.With("provider", change.provider, "target", change.target, "reason", string(change.reason))
		if change.ready {
			log.Info("target is ready again")
		} else {
			log.Warn("target is not ready", "message", change.message)
		}
	}
}

// show makes a round visible to readers.
func (m *Monitor) show(reports []report) {
	now := time.Now()
	var targets []Target
	for _, report := range reports {
		for _, verdict := range report.verdicts {
			targets = append(targets, Target{Provider: report.name, Type: report.kind, Verdict: verdict, At: now})
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.taken, m.result, m.targets = true, m.board.result(), targets
	close(m.changed)
	m.changed = make(chan struct{})
}

// end waits for the checks under way and tells the readers.
func (m *Monitor) end() {
	ctx, cancel := context.WithTimeout(context.Background(), m.options.Timeout/grace)
	defer cancel()
	for _, lane := range m.lanes {
		lane.wait(ctx)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.ended = true
	close(m.changed)
	m.changed = make(chan struct{})
}

// Targets are the latest verdicts.
func (m *Monitor) Targets() []Target {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.targets
}

// Results gives the result of now, as soon as there is one, and then each that
// differs from the one before. A reader that is slow misses some, but never the
// last. Each reader is told the retraction of what it was told. The channel is
// closed when ctx or Run ends.
func (m *Monitor) Results(ctx context.Context) <-chan Result {
	results := make(chan Result)
	go func() { // Ends with ctx or Run.
		defer close(results)
		var before Result
		for {
			m.mu.Lock()
			now, taken, ended, changed := m.result, m.taken, m.ended, m.changed
			m.mu.Unlock()
			if ended {
				return
			}
			if told, differs := now.since(before); taken && differs {
				select {
				case results <- told:
					before = now
				case <-ctx.Done():
					return
				}
			}
			select {
			case <-changed:
			case <-ctx.Done():
				return
			}
		}
	}()
	return results
}
