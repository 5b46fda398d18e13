package fingerprint

import (
	"fmt"
	"maps"
	"strconv"
	"strings"
)

// prefix starts every attribute: Nomad keeps what a driver publishes as it is.
const prefix = "driver.egress."

// maxNamed is how many targets a description names.
const maxNamed = 10

// result is what the board tells a node, without retractions.
func (b *board) result() Result {
	if len(b.reports) == 0 {
		return Result{
			Health: Undetected, Description: "no provider is configured", Attributes: map[string]string{},
		}
	}
	attributes := make(map[string]string)
	var failing []string
	total, ready := 0, 0
	for _, report := range b.reports {
		here := b.publish(report, attributes)
		failing = append(failing, here.failing...)
		total, ready = total+here.targets, ready+here.ready
	}
	health, description := describe(total, ready, failing)
	standings, silent := b.stand()
	return Result{
		Health: health, Description: description, Attributes: attributes, Standings: standings, Silent: silent,
	}
}

// tally counts a provider's targets.
type tally struct {
	targets, ready int
	failing        []string // as a description names them
}

// publish adds the attributes of one provider.
func (b *board) publish(report report, attributes map[string]string) tally {
	var count tally
	known := true
	for _, verdict := range report.verdicts {
		s := b.of(report.name, verdict.Target)
		if verdict.Target == unknown {
			known = false
			count.failing = append(count.failing, fmt.Sprintf("%s (%s)", report.name, s.reason))
			continue
		}
		key := prefix + report.name + "." + verdict.Target + "."
		for fact, value := range s.facts {
			attributes[key+fact] = value
		}
		attributes[key+"ready"] = strconv.FormatBool(s.ready)
		attributes[key+"reason"] = string(s.reason)
		count.targets++
		if s.ready {
			count.ready++
			most(attributes, prefix+report.name+".", s.facts)
		} else {
			count.failing = append(count.failing, fmt.Sprintf("%s/%s (%s)", report.name, verdict.Target, s.reason))
		}
	}
	key := prefix + report.name + "."
	attributes[key+"type"] = report.kind
	attributes[key+"ready"] = strconv.FormatBool(count.ready > 0)
	attributes[key+"targets_ready"] = strconv.Itoa(count.ready)
	if known {
		attributes[key+"targets"] = strconv.Itoa(count.targets)
	}
	return count
}

// most keeps for the whole provider the most that any ready target has of what
// is available: a job that leaves the choice of the target to the driver can
// constrain on that.
func most(attributes map[string]string, key string, facts map[string]string) {
	for fact, value := range facts {
		if !isRoom(fact) {
			continue
		}
		number, err := strconv.ParseInt(value, 10, 64)
		if err != nil {
			continue
		}
		// What isn't there is not a number, and so less than any.
		if known, err := strconv.ParseInt(attributes[key+fact], 10, 64); err != nil || number > known {
			attributes[key+fact] = value
		}
	}
}

// describe gives the same words for the same state: each change of them is an
// event of the node and a write to raft.
func describe(total, ready int, failing []string) (Health, string) {
	if len(failing) == 0 && ready > 0 {
		return Healthy, "Healthy"
	}
	names := failing
	if len(names) > maxNamed {
		names = append(names[:maxNamed:maxNamed], fmt.Sprintf("and %d more", len(failing)-maxNamed))
	}
	list := strings.Join(names, ", ")
	switch {
	case ready > 0:
		return Healthy, fmt.Sprintf("%d of %d targets ready; not ready: %s", ready, total, list)
	case len(failing) > 0:
		return Unhealthy, "no target is ready: " + list
	default:
		return Unhealthy, "no provider has a target"
	}
}

// since is the result for a node that was told before already: with an empty
// value for every attribute that is no more. changed is false when there is
// nothing to tell.
func (r Result) since(before Result) (_ Result, changed bool) {
	changed = r.Health != before.Health || r.Description != before.Description ||
		!maps.Equal(r.Attributes, before.Attributes)
	told := r
	told.Attributes = maps.Clone(r.Attributes)
	for key := range before.Attributes {
		if _, still := r.Attributes[key]; !still {
			told.Attributes[key] = ""
		}
	}
	return told, changed
}
