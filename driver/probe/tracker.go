package probe

import "net/netip"

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

// Tracker turns verdicts into transitions: it takes so many successes in a row
// to pass, so many failures in a row to be critical, and as many with one new
// reason to change the reason. A new exit address counts at once. It is a pure
// state machine and not safe for concurrent use.
type Tracker struct {
	successes int
	failures  int

	// published is what the world believes; known is false before the first.
	published Verdict
	known     bool
	exitIP    netip.Addr
	// run counts verdicts in a row that speak for the same change: all OK, all
	// failed, or, while critical, all failed with message.
	run     int
	message string
}

// NewTracker starts from initial, which counts as published; the zero Verdict
// means that nothing is known. Thresholds below 1 are 1.
func NewTracker(successes, failures int, initial Verdict) *Tracker {
	return &Tracker{
		successes: max(successes, 1),
		failures:  max(failures, 1),
		published: initial,
		known:     initial.Known(),
		exitIP:    initial.ExitIP,
	}
}

// Observe takes the next verdict. ok is false when nothing is to be published.
func (t *Tracker) Observe(verdict Verdict) (transition Transition, ok bool) {
	if verdict.ExitIP.IsValid() {
		t.exitIP = verdict.ExitIP
	}
	verdict.ExitIP = t.exitIP
	switch {
	case verdict.OK && t.known && t.published.OK:
		t.run = 0
		if t.exitIP != t.published.ExitIP {
			return t.publish(ToOtherExitIP, verdict)
		}
	case verdict.OK:
		if t.count("") >= t.successes {
			return t.publish(ToPassing, verdict)
		}
	case !t.known || t.published.OK:
		if t.count(string(ToCritical)) >= t.failures {
			return t.publish(ToCritical, verdict)
		}
	case verdict.Message == t.published.Message:
		t.run = 0
	default:
		if t.count(verdict.Message) >= t.failures {
			return t.publish(ToOtherReason, verdict)
		}
	}
	return Transition{}, false
}

// count adds a verdict that speaks for the change that message stands for, and
// returns how many did so in a row. Verdict messages are never empty.
func (t *Tracker) count(message string) int {
	if t.message != message {
		t.message, t.run = message, 0
	}
	t.run++
	return t.run
}

func (t *Tracker) publish(change Change, verdict Verdict) (Transition, bool) {
	t.published, t.known, t.run = verdict, true, 0
	return Transition{Change: change, Verdict: verdict}, true
}

// Current is the verdict that was published last; zero when none was.
func (t *Tracker) Current() Verdict { return t.published }
