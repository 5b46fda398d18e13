package fingerprint

import (
	"slices"

	"github.com/egress-proxies/egress/provider"
)

// report is what a round learned of one provider.
type report struct {
	name, kind string
	verdicts   []provider.Verdict // in the order of targets
	pending    bool               // the provider itself did not answer
	early      bool               // it was not waited for until the timeout
}

// unknown is the target of a provider that has never answered.
const unknown = ""

// place is the name of a target among all providers.
type place struct{ provider, target string }

// standing is what is published of one target.
type standing struct {
	ready  bool
	reason provider.Reason
	facts  map[string]string // as published

	// A verdict that isn't believed yet, and how often it was given in a row.
	doubted provider.Reason
	times   int
}

// transition is a change of a target's standing. The first standing is one too
// when the target isn't ready.
type transition struct {
	place
	ready   bool
	reason  provider.Reason
	message string
}

// board keeps the standing of every target from round to round. It is pure: the
// same reports in the same order give the same board.
type board struct {
	standings map[place]*standing
	reports   []report // of the last round
}

func newBoard() *board { return &board{standings: make(map[place]*standing)} }

// take brings the board up to date with a round.
func (b *board) take(reports []report) []transition {
	var changes []transition
	seen := make(map[place]bool)
	for _, report := range reports {
		if report.pending && report.early {
			continue // It may answer yet.
		}
		for _, verdict := range report.verdicts {
			at := place{report.name, verdict.Target}
			seen[at] = true
			if change, changed := b.judge(at, verdict); changed {
				changes = append(changes, change)
			}
		}
	}
	for at := range b.standings {
		if seen[at] {
			continue
		}
		delete(b.standings, at)
		if at.target == unknown {
			changes = append(changes, transition{at, true, provider.Reachable, ""})
		}
	}
	b.reports = reports
	return changes
}

// judge applies one verdict to the standing of its target.
func (b *board) judge(at place, verdict provider.Verdict) (change transition, changed bool) {
	change = transition{at, verdict.Ready, verdict.Reason, verdict.Message}
	s, known := b.standings[at]
	if !known {
		b.standings[at] = &standing{
			ready: verdict.Ready, reason: verdict.Reason, facts: publish(verdict.Facts, nil),
		}
		return change, !verdict.Ready
	}
	if verdict.Ready == s.ready && verdict.Reason == s.reason {
		s.doubted, s.times = "", 0
		s.facts = publish(verdict.Facts, s.facts)
		return change, false
	}
	if s.doubted != verdict.Reason {
		s.doubted, s.times = verdict.Reason, 0
	}
	if s.times++; s.times < believedAfter(s, verdict) {
		return change, false
	}
	s.ready, s.reason, s.doubted, s.times = verdict.Ready, verdict.Reason, "", 0
	s.facts = publish(verdict.Facts, s.facts)
	return change, true
}

// How many rounds in a row must say the same before it is published, where one
// is not enough.
const (
	// A check that got no answer says nothing for certain: the host may just
	// be busy.
	timeoutRounds = 2
	// A dead host often alternates between two reasons (refused, then no
	// answer), which matters to nobody.
	reasonRounds = 2
	// Room that hovers at the limit would switch the target on and off.
	roomRounds = 3
)

// believedAfter is how many rounds in a row must give a verdict that differs
// from what is published. Most are believed at once.
func believedAfter(s *standing, verdict provider.Verdict) int {
	switch {
	case verdict.Reason == provider.Timeout:
		return timeoutRounds
	case !s.ready && !verdict.Ready:
		return reasonRounds
	case verdict.Ready && (s.reason == provider.PoolNearlyFull || s.reason == provider.QuotaExhausted):
		return roomRounds
	default:
		return 1
	}
}

// of gives the standing of a target that the last round had.
func (b *board) of(name, target string) standing {
	if s, ok := b.standings[place{name, target}]; ok {
		return *s
	}
	return standing{reason: provider.Timeout}
}

// sortVerdicts orders verdicts by target and drops a second one on the same.
func sortVerdicts(verdicts []provider.Verdict) []provider.Verdict {
	sorted := slices.Clone(verdicts)
	slices.SortStableFunc(sorted, func(a, b provider.Verdict) int {
		switch {
		case a.Target < b.Target:
			return -1
		case a.Target > b.Target:
			return 1
		}
		return 0
	})
	return slices.CompactFunc(sorted, func(a, b provider.Verdict) bool { return a.Target == b.Target })
}
