package registry

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"
)

// targetTTL is how long a node may be silent until Consul calls its targets
// critical.
const targetTTL = DefaultTTL

// TargetConfig says who publishes targets, and where.
type TargetConfig struct {
	// Config says how to reach Consul. Service is the name of the targets'
	// service; Node is the node's name, for people.
	Config
	// Home tells plugins apart that share an agent: the state directory.
	Home string
}

// publisher marks what this plugin, and earlier processes of it, published.
func (c TargetConfig) publisher() string { return short(c.Cluster, c.Node, c.Home) }

// Targets publishes the targets of a node in the local Consul agent: one
// service for each, with a TTL check. Consul's servers are written to only when
// something changed.
type Targets struct {
	config TargetConfig
	consul *agent
	wake   chan struct{}

	mu     sync.Mutex // guards what follows
	wanted map[place]Target
	// silent are the providers whose targets are not known.
	silent map[string]bool
	// version counts the calls of Set.
	version int

	// tidied is the version for which nothing stale is left. Run's own.
	tidied int
}

// NewTargets validates and does nothing else; Run publishes.
func NewTargets(config TargetConfig) (*Targets, error) {
	if config.Service == "" {
		config.Service = DefaultTargetService
	}
	if err := config.Validate(); err != nil {
		return nil, err
	}
	config.Config = config.WithDefaults()
	agent, err := newAgent(config.Config)
	if err != nil {
		return nil, err
	}
	return &Targets{config: config, consul: agent, wake: make(chan struct{}, 1)}, nil
}

// Set replaces the targets and returns at once. What an earlier process
// published and is not among them is removed, except for the providers in
// silent, which have not told their targets yet.
func (t *Targets) Set(targets []Target, silent []string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.version++
	t.wanted, t.silent = map[place]Target{}, map[string]bool{}
	for _, target := range targets {
		t.wanted[target.place()] = target
	}
	for _, provider := range silent {
		t.silent[provider] = true
	}
	select {
	case t.wake <- struct{}{}:
	default:
	}
}

// published is what Consul holds of a target, as far as is known.
type published struct {
	Target
	// beat is when the check was told last.
	beat time.Time
}

// Run keeps Consul as Set said until ctx ends. It deregisters nothing then: the
// next process goes on from there, and if there is none, Consul calls the
// targets critical and removes them.
func (t *Targets) Run(ctx context.Context) {
	defer t.consul.close()
	has := map[place]published{}
	var refused string
	pause := firstRetry
	timer := time.NewTimer(targetTTL / beatsPerTTL)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.wake:
		case <-timer.C:
		}
		err := t.sync(ctx, has)
		if ctx.Err() != nil {
			return
		}
		refused = t.report(refused, err)
		if err == nil {
			pause = firstRetry
			timer.Reset(targetTTL / beatsPerTTL)
			continue
		}
		timer.Reset(pause/2 + rand.N(pause))
		pause = min(2*pause, retryLimit)
	}
}

// sync makes one attempt at everything, and gives the first error.
func (t *Targets) sync(ctx context.Context, has map[place]published) error {
	t.mu.Lock()
	wanted, silent, version := t.wanted, t.silent, t.version
	t.mu.Unlock()
	if version == 0 {
		return nil
	}
	var failed error
	note := func(err error) {
		if failed == nil {
			failed = err
		}
	}
	for at, target := range wanted {
		err := t.publish(ctx, target, has)
		note(err)
		if errors.Is(err, errDown) {
			return err // So would the others be.
		}
		if err != nil {
			delete(has, at)
		}
	}
	if t.tidied != version {
		err := t.tidy(ctx, wanted, silent, has)
		if err == nil {
			t.tidied = version
		}
		note(err)
	}
	return failed
}

// publish registers the target if it changed, and tells its check.
func (t *Targets) publish(ctx context.Context, target Target, has map[place]published) error {
	at := target.place()
	known, registered := has[at]
	if registered && known.equal(target) && time.Since(known.beat) < targetTTL/beatsPerTTL/2 {
		return nil
	}
	if !registered || !known.equal(target) {
		if err := t.consul.register(ctx, target.registration(t.config)); err != nil {
			return err
		}
	}
	id := targetID(at, t.config.publisher())
	err := t.consul.tell(ctx, id, t.config.Service, target.output(), target.health())
	if errors.Is(err, errMissing) && registered {
		delete(has, at) // Consul was restarted without its state.
		return t.publish(ctx, target, has)
	}
	if err == nil {
		has[at] = published{target, time.Now()}
	}
	return err
}

// tidy removes what this plugin published, now or as an earlier process, and is
// no target any more.
func (t *Targets) tidy(ctx context.Context, wanted map[place]Target, silent map[string]bool, has map[place]published) error {
	found, err := t.consul.targets(ctx, t.config.publisher())
	if err != nil {
		return err
	}
	for at, id := range found {
		if _, keep := wanted[at]; keep && id == targetID(at, t.config.publisher()) || silent[at.provider] {
			continue
		}
		if err := t.consul.drop(ctx, id, serviceWrite(t.config.Service)); err != nil {
			return err
		}
		delete(has, at)
		t.config.Logger.Info("a target is no longer registered in Consul", "service", id)
	}
	return nil
}

// report logs a refusal once for as long as it stays the same.
func (t *Targets) report(before string, err error) string {
	var refusal *refusalError
	switch {
	case err == nil && before != "":
		t.config.Logger.Info("Consul accepts the targets again")
		return ""
	case errors.As(err, &refusal) && err.Error() != before:
		t.config.Logger.Error("Consul refuses the targets", "service", t.config.Service, "error", err)
		return err.Error()
	}
	return before
}

// String names the service in logs.
func (t *Targets) String() string { return fmt.Sprintf("targets as %q", t.config.Service) }
