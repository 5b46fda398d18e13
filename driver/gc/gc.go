// Package gc finds and deletes the instances that no allocation needs any more.
//
// It deletes only what it could check: an instance whose cluster is another, or
// whose allocation, node or age can't be found out, stays.
package gc

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/egress-proxies/egress/provider"
)

// DefaultOlderThan is the age below which an instance is left alone: Nomad may
// not have told yet that its allocation lives.
const DefaultOlderThan = 15 * time.Minute

// Nomad says what lives.
type Nomad interface {
	// LiveAllocs gives the ids of the allocations of a namespace that are not
	// over. A namespace that may not be read is an error.
	LiveAllocs(ctx context.Context, namespace string) (map[string]bool, error)
	// Nodes gives the ids of the nodes that are known.
	Nodes(ctx context.Context) (map[string]bool, error)
}

// Options of Run.
type Options struct {
	// Cluster is whose instances are looked at.
	Cluster string
	// Providers by name.
	Providers map[string]provider.Provider
	// Nomad is asked what lives.
	Nomad Nomad
	// OlderThan is the age from which an instance may be deleted; 0 is
	// DefaultOlderThan.
	OlderThan time.Duration
	// UnknownNodes also deletes the instances of nodes that Nomad doesn't know.
	// They may be another region's, whose allocations are unknown here too.
	UnknownNodes bool
	// DryRun only says what would be deleted.
	DryRun bool
	// Now is the clock; nil is time.Now.
	Now func() time.Time
}

// Action is what was done about an instance.
type Action string

// The actions.
const (
	// Keep: it is needed.
	Keep Action = "keep"
	// Skip: it could not be checked, and stays.
	Skip Action = "skip"
	// Would: it would be deleted, were this no dry run.
	Would Action = "would delete"
	// Deleted: it is gone.
	Deleted Action = "deleted"
	// Failed: it should be gone, and deleting it failed.
	Failed Action = "failed"
)

// Finding is one instance and what was done about it.
type Finding struct {
	// Provider is the name of its provider.
	Provider string
	// Instance is what was listed.
	Instance provider.Instance
	// Action is what was done.
	Action Action
	// Why explains it to a person.
	Why string
}

// Result is what Run found.
type Result struct {
	// Findings in the order of providers and names.
	Findings []Finding
	// Problems are the providers that could not be listed, and what of Nomad
	// could not be read: "provider \"hv\": …".
	Problems []error
}

// maxDeletes is how many deletes run at once.
const maxDeletes = 8

// Run looks at all instances and deletes those that nobody needs. The places are
// listed before Nomad is asked: every instance that was seen belongs to an
// allocation that existed before, so that a new one can't be missed.
func Run(ctx context.Context, options Options) Result {
	if options.OlderThan == 0 {
		options.OlderThan = DefaultOlderThan
	}
	if options.Now == nil {
		options.Now = time.Now
	}
	var result Result
	result.Findings, result.Problems = list(ctx, options.Providers)
	world := ask(ctx, options.Nomad, result.Findings)
	result.Problems = append(result.Problems, world.problems...)
	for i := range result.Findings {
		finding := &result.Findings[i]
		finding.Action, finding.Why = judge(finding.Instance, world, options)
	}
	if !options.DryRun {
		remove(ctx, options.Providers, result.Findings)
	}
	return result
}

// list lists all providers at once. One that can't be listed is a problem, and
// its instances are not looked at.
func list(ctx context.Context, providers map[string]provider.Provider) (findings []Finding, problems []error) {
	var wg sync.WaitGroup
	var mu sync.Mutex // guards the results
	for _, name := range slices.Sorted(maps.Keys(providers)) {
		wg.Go(func() {
			instances, err := providers[name].List(ctx)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				problems = append(problems, fmt.Errorf("provider %q can't be listed: %w", name, err))
				return
			}
			for _, instance := range instances {
				findings = append(findings, Finding{Provider: name, Instance: instance})
			}
		})
	}
	wg.Wait()
	slices.SortFunc(findings, func(a, b Finding) int {
		return compare(a.Provider+"\x00"+a.Instance.Ref.String(), b.Provider+"\x00"+b.Instance.Ref.String())
	})
	slices.SortFunc(problems, func(a, b error) int { return compare(a.Error(), b.Error()) })
	return findings, problems
}

func compare(a, b string) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	default:
		return 0
	}
}

// remove deletes what judge found to be garbage.
func remove(ctx context.Context, providers map[string]provider.Provider, findings []Finding) {
	var wg sync.WaitGroup
	room := make(chan struct{}, maxDeletes)
	for i := range findings {
		finding := &findings[i]
		if finding.Action != Would {
			continue
		}
		wg.Go(func() {
			room <- struct{}{}
			defer func() { <-room }()
			if err := providers[finding.Provider].Delete(ctx, finding.Instance.Ref); err != nil {
				finding.Action, finding.Why = Failed, fmt.Sprintf("%s: %v", finding.Why, err)
				return
			}
			finding.Action = Deleted
		})
	}
	wg.Wait()
}
