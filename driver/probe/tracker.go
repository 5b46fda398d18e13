package probe

// Transition is a change that is worth publishing.
type Transition struct {
	// Change is what changed.
	Change Change
	// Verdict is what to publish now: the latest verdict, with the last known
	// exit address when the latest had none.
	Verdict Verdict
}

// Change is the kind of a transition.
type Change string

// The kinds of transitions.
const (
	// ToPassing: the first verdict known, or critical until now.
	ToPassing Change = "passing"
	// ToCritical: the first verdict known, or passing until now.
	ToCritical Change = "critical"
	// ToOtherReason: still critical, for another reason than the one published.
	ToOtherReason Change = "reason"
	// ToOtherExitIP: still passing, and the exit address is another one or
	// became known.
	ToOtherExitIP Change = "exit_ip"
)

// Tracker turns verdicts into transitions. It is a pure state machine and not
// safe for concurrent use.
type Tracker struct {
	successes int
	failures  int
}

// NewTracker starts from initial, which counts as published; the zero Verdict
// means that nothing is known.
func NewTracker(successes, failures int, initial Verdict) *Tracker {
	return &Tracker{successes: successes, failures: failures}
}

// Observe takes the next verdict. ok is false when nothing is to be published.
func (t *Tracker) Observe(verdict Verdict) (transition Transition, ok bool) {
	return Transition{}, false
}

// Current is the verdict that was published last; zero when none was.
func (t *Tracker) Current() Verdict {
	return Verdict{}
}
