// Package gcp launches proxies as virtual machines on Google Compute Engine.
//
// A machine and its boot disk carry the labels of their cluster, and the whole
// truth about whose they are in their description, since labels of Compute
// Engine know neither capitals nor most other characters. docs/gcp.md is for
// those who run it.
package gcp

import (
	"context"
	"time"

	"github.com/egress-proxies/egress/provider"
)

// Provider launches machines in the zones of one project.
type Provider struct {
	settings settings
	env      provider.Env
	timing   timing
	client   client
	names    provider.NameLocks
	attempts attempts
	seen     sightings
	stops    stops
	hub      hub
	checks   checks
}

var (
	_ provider.Provider  = (*Provider)(nil)
	_ provider.Validator = (*Provider)(nil)
	_ provider.Stopper   = (*Provider)(nil)
	_ provider.Watcher   = (*Provider)(nil)
	_ provider.Console   = (*Provider)(nil)
	_ provider.Checker   = (*Provider)(nil)
)

// timing is how long things take. Compute Engine counts every call against a
// quota of the project, so that nothing is asked more often than it changes.
type timing struct {
	backoff     time.Duration // before a call is repeated; doubled each time
	backoffMax  time.Duration
	operation   time.Duration // the longest that an operation is followed
	again       time.Duration // between two calls that wait for one operation
	cleanup     time.Duration // for removing what a failed start made
	starting    time.Duration // how old a state without an address may be
	watch       time.Duration // between two looks at all watched machines
	watchMax    time.Duration // the same while Google does not answer
	console     time.Duration // between two looks at a serial port that talks
	consoleIdle time.Duration // the same once it is silent
	check       time.Duration // how old a good verdict may be
}

var defaultTiming = timing{
	backoff: time.Second, backoffMax: 8 * time.Second,
	operation: 5 * time.Minute, again: time.Second, cleanup: 40 * time.Second,
	starting: 2 * time.Second,
	watch:    15 * time.Second, watchMax: 2 * time.Minute,
	console: 5 * time.Second, consoleIdle: time.Minute,
	check: 5 * time.Minute,
}

// New makes a provider of a `type = "gcp"` block. It connects to nothing and
// reads no credentials.
func New(config provider.Config, env provider.Env) (provider.Provider, error) {
	settings, err := parse(config.Options)
	if err != nil {
		return nil, err
	}
	return build(settings, env, defaultTiming), nil
}

func build(settings settings, env provider.Env, timing timing) *Provider {
	p := &Provider{settings: settings, env: env, timing: timing}
	p.client.settings, p.client.logger = settings, env.Logger
	p.hub.p = p
	return p
}

// Close ends the watches and the connections.
func (p *Provider) Close() error {
	p.hub.close()
	p.client.close()
	return nil
}

// Get asks for one machine: one call when the zone is known, and a search
// through the project when it isn't.
func (p *Provider) Get(ctx context.Context, ref provider.Ref) (provider.Instance, error) {
	if err := provider.CheckName(ref.Name); err != nil {
		return provider.Instance{}, err
	}
	// The caller of a start asks several times a second.
	if last, ok := p.seen.recent(ref, p.timing.starting); ok && ctx.Err() == nil {
		return last, nil
	}
	if ref.Zone != "" {
		found, err := p.get(ctx, ref.Zone, ref.Name)
		if err != nil {
			return provider.Instance{}, err
		}
		if err := p.owned(found); err != nil {
			return provider.Instance{}, err
		}
		return p.describe(ctx, found), nil
	}
	found, silent, err := p.find(ctx, ref.Name)
	if err != nil {
		return provider.Instance{}, err
	}
	if len(found) > 0 {
		if err := p.owned(found[0]); err != nil {
			return provider.Instance{}, err
		}
		return p.describe(ctx, found[0]), nil
	}
	if len(silent) > 0 {
		return provider.Instance{}, unreachable(silent)
	}
	return provider.Instance{}, provider.NotFoundf("project %s has no machine %s in any zone", p.settings.Project, ref.Name)
}
