package registry

import (
	"errors"
	"math/rand/v2"
	"net/netip"
	"time"
)

const (
	// removalLimit bounds the retries of a deregistration. After it, Consul's
	// own DeregisterCriticalServiceAfter and the next Reconcile are left.
	removalLimit = 10 * time.Minute
	// firstRetry and retryLimit are the pauses while Consul does not answer:
	// short enough that a restarted agent is refilled within seconds.
	firstRetry = 500 * time.Millisecond
	retryLimit = 10 * time.Second
	// beatsPerTTL lets two heartbeats in a row be lost.
	beatsPerTTL = 3
)

// owner is the one goroutine that talks to Consul about a name, so that a
// registration, an update and a deregistration can never overtake each other.
type owner struct {
	name string
	wake chan struct{}
	// endpoint and want are guarded by Registry.mu.
	endpoint Endpoint
	want     want
}

// want is what Consul should hold.
type want struct {
	// life counts the registrations of the name after deregistrations.
	life int
	// definition counts the changes of the endpoint.
	definition int
	// status is nil until something is known.
	status *status
	// removed is closed when the deregistration is done; nil means that the
	// endpoint should be published.
	removed chan struct{}
	// until is when a deregistration is given up.
	until time.Time
}

func (w *want) set(s status) { w.status = &s }

// have is what Consul holds, as far as the owner knows.
type have struct {
	registered bool
	life       int
	definition int
	// exitIP is part of the meta, so that a new one needs a registration.
	exitIP netip.Addr
	// told is the status that the check was last given, at the time of beat.
	told *status
	beat time.Time
}

// nudge makes the owner look at what is wanted.
func (o *owner) nudge() {
	select {
	case o.wake <- struct{}{}:
	default:
	}
}

// start makes the owner of a name. The caller holds r.mu.
func (r *Registry) start(name string) *owner {
	o := &owner{name: name, wake: make(chan struct{}, 1)}
	r.owners[name] = o
	r.wg.Go(func() { r.own(o) })
	return o
}

// own keeps Consul as wanted until the endpoint is removed or the registry is
// closed.
func (r *Registry) own(o *owner) {
	var has have
	var refused string
	pause := firstRetry
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-r.ctx.Done():
			return
		case <-o.wake:
		case <-timer.C:
		}
		r.mu.Lock()
		endpoint, wanted := o.endpoint, o.want
		r.mu.Unlock()
		var err error
		if wanted.removed != nil {
			err = r.consul.deregister(r.ctx, o.name)
			has = have{}
			if r.done(o, wanted, err) {
				return
			}
		} else if endpoint.Name != "" {
			err = r.sync(endpoint, wanted, &has)
		}
		if r.ctx.Err() != nil {
			return
		}
		refused = r.report(o.name, refused, err)
		if err == nil {
			pause = firstRetry
			timer.Reset(time.Until(has.beat.Add(endpoint.TTL / beatsPerTTL)))
			continue
		}
		timer.Reset(pause/2 + rand.N(pause))
		pause = min(2*pause, retryLimit)
	}
}

// done ends the owner when its endpoint is gone from Consul, or was tried long
// enough, and nobody registered the name again meanwhile.
func (r *Registry) done(o *owner, wanted want, err error) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if o.want.removed != wanted.removed {
		return false
	}
	if err != nil {
		if time.Now().Before(wanted.until) {
			return false
		}
		r.config.Logger.Warn("deregistration in Consul is given up", "service", serviceID(o.name), "error", err)
	} else {
		close(wanted.removed)
	}
	delete(r.owners, o.name)
	return true
}

// sync makes Consul's state the wanted one, and sends the heartbeat when it is
// due.
func (r *Registry) sync(endpoint Endpoint, wanted want, has *have) error {
	target, err := r.target(endpoint, wanted, has)
	if err != nil {
		return err
	}
	fresh := false
	if !has.registered || has.life != wanted.life || has.definition != wanted.definition || has.exitIP != target.exitIP {
		if err := r.consul.register(r.ctx, endpoint.registration(r.config, target)); err != nil {
			return err
		}
		*has = have{registered: true, life: wanted.life, definition: wanted.definition, exitIP: target.exitIP}
		fresh = true
	}
	if !fresh && has.told != nil && *has.told == target && time.Since(has.beat) < endpoint.TTL/beatsPerTTL {
		return nil
	}
	err = r.consul.update(r.ctx, endpoint, target)
	switch {
	case err == nil:
		has.told, has.beat = &target, time.Now()
	case errors.Is(err, errMissing) && !fresh:
		// Consul was restarted without its state, or removed the service after
		// it was critical for long: register it again, with its status.
		*has = have{told: &target}
		return r.sync(endpoint, wanted, has)
	}
	return err
}

// target is the status to publish: what the probe found or, before it found
// anything, what Consul has.
func (r *Registry) target(endpoint Endpoint, wanted want, has *have) (status, error) {
	switch {
	case wanted.status != nil:
		return *wanted.status, nil
	case has.told != nil:
		return *has.told, nil
	default:
		return r.consul.known(r.ctx, endpoint)
	}
}

// report logs a refusal once for as long as it stays the same. That Consul does
// not answer at all is the agent's to log, once for all endpoints.
func (r *Registry) report(name, before string, err error) string {
	var refusal *refusalError
	if !errors.As(err, &refusal) {
		if err == nil && before != "" {
			r.config.Logger.Info("Consul accepts the endpoint again", "service", serviceID(name))
			return ""
		}
		return before
	}
	if text := err.Error(); text != before {
		r.config.Logger.Error("Consul refuses the endpoint", "service", serviceID(name), "error", err)
		return text
	}
	return before
}
