// Package fingerprint checks the targets of every provider on a schedule and
// turns the verdicts into a Nomad node's attributes and driver health, metrics
// and log lines.
//
// What is published, in which words and when, is decided by pure functions
// (board.go, band.go, attributes.go); monitor.go has the only loop. Every
// attribute, reason and metric is explained in docs/health.md.
package fingerprint

import (
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/egress-proxies/egress/provider"
)

// Source is one provider to check. A provider that is no provider.Checker
// counts as one target that is always ready.
type Source struct {
	// Name is the provider's name in the configuration.
	Name string
	// Type is the provider's type, such as "kvm".
	Type string
	// Provider is what to check.
	Provider provider.Provider
}

// Options of a Monitor. The zero value is valid.
type Options struct {
	// Interval is from the start of one round to the start of the next; 0 is
	// DefaultInterval. A round that takes longer is followed at once.
	Interval time.Duration
	// Timeout bounds one check; 0 is DefaultTimeout.
	Timeout time.Duration
	// FirstWait is how long the very first result waits for verdicts, because
	// a Nomad client waits for it at its start; 0 is DefaultFirstWait.
	FirstWait time.Duration
	// Logger tells transitions; nil logs nothing.
	Logger hclog.Logger
}

// The defaults of Options.
const (
	DefaultInterval  = 30 * time.Second
	DefaultTimeout   = 20 * time.Second
	DefaultFirstWait = 3 * time.Second
)

func (o Options) withDefaults() Options {
	if o.Interval <= 0 {
		o.Interval = DefaultInterval
	}
	if o.Timeout <= 0 {
		o.Timeout = DefaultTimeout
	}
	if o.FirstWait <= 0 {
		o.FirstWait = DefaultFirstWait
	}
	if o.Logger == nil {
		o.Logger = hclog.NewNullLogger()
	}
	return o
}

// Health is the health of the driver, in Nomad's own words.
type Health string

// The healths.
const (
	// Undetected: no provider is configured.
	Undetected Health = "undetected"
	// Unhealthy: no target is ready, so that no task could be started.
	Unhealthy Health = "unhealthy"
	// Healthy: a task can be started on some target.
	Healthy Health = "healthy"
)

// Result is what a Nomad node is told.
type Result struct {
	// Health of the driver.
	Health Health
	// Description explains it, in the same words for the same state.
	Description string
	// Attributes of the node. An empty value retracts one that was told before.
	Attributes map[string]string
	// Standings are what the attributes say, target by target.
	Standings []Standing
	// Silent are the providers that have not answered yet: what targets they
	// have is not known.
	Silent []string
}

// Target is the latest verdict on one target, as it was given: Result is
// steadier.
type Target struct {
	// Provider and Type are those of its Source.
	Provider, Type string
	provider.Verdict
	// At is when the verdict was given.
	At time.Time
}
