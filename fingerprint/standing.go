package fingerprint

import (
	"maps"

	"github.com/egress-proxies/egress/provider"
)

// Standing is what a node's attributes say of one target, for who publishes it
// elsewhere: as steady as they are, with numbers in the same bands.
type Standing struct {
	// Provider and Type are those of its Source.
	Provider, Type string
	// Target is its name in the provider.
	Target string
	// Ready is true when an instance could be launched there.
	Ready bool
	// Reason is the one word for it.
	Reason provider.Reason
	// Advice says what a person does about the reason, in the same words for
	// the same reason.
	Advice string
	// Facts are the published ones.
	Facts map[string]string
}

// stand gives the standings of the last round, and the providers that have not
// answered yet, so that nothing is known of their targets.
func (b *board) stand() (list []Standing, silent []string) {
	for _, report := range b.reports {
		for _, verdict := range report.verdicts {
			if verdict.Target == unknown {
				silent = append(silent, report.name)
				continue
			}
			s := b.of(report.name, verdict.Target)
			list = append(list, Standing{
				Provider: report.name, Type: report.kind, Target: verdict.Target, Ready: s.ready,
				Reason: s.reason, Advice: advice[s.reason], Facts: maps.Clone(s.facts),
			})
		}
	}
	return list, silent
}
