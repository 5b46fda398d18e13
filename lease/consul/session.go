package consul

import (
	"context"
	"fmt"
	"time"

	"github.com/hashicorp/consul/api"
)

// electionService is the name under which replicas register a check of their
// own: a session that depends on it is void soon after its process is gone. A
// check of a service is needed, since one of a node would count for all of the
// node's services.
const electionService = "egress-lease-election"

func (e *Elector) serviceID() string { return electionService + "-" + e.ID }
func (e *Elector) checkID() string   { return "service:" + e.serviceID() }

// open makes a session, one that depends on the check if that can be had: the
// agent may not be allowed to have it, or may not have told the servers yet that
// it passes. An agent that could not reach them tries again only after up to
// thirty seconds.
func (e *Elector) open(ctx context.Context, registered bool) (session string, checked bool, err error) {
	options := func(ctx context.Context) *api.WriteOptions { return (&api.WriteOptions{}).WithContext(ctx) }
	entry := api.SessionEntry{
		Name:      electionService + " " + e.ID,
		TTL:       sessionTTL.String(),
		LockDelay: lockDelay,
		Behavior:  api.SessionBehaviorRelease,
	}
	if registered {
		bound := entry
		bound.NodeChecks = []string{"serfHealth"}
		bound.ServiceChecks = []api.ServiceCheck{{ID: e.checkID()}}
		if session, err = e.create(ctx, checkPatience, func(ctx context.Context) (string, error) {
			id, _, err := e.Client.Session().Create(&bound, options(ctx))
			return id, err
		}); err == nil {
			return session, true, nil
		}
	}
	session, err = e.create(ctx, 2*callTimeout, func(ctx context.Context) (string, error) {
		id, _, err := e.Client.Session().CreateNoChecks(&entry, options(ctx))
		return id, err
	})
	return session, false, err
}

// create tries for a while.
func (e *Elector) create(ctx context.Context, patience time.Duration, once func(context.Context) (string, error)) (session string, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		if session, err = once(ctx); err == nil {
			return session, nil
		}
		pause(ctx, 100*time.Millisecond)
		if ctx.Err() != nil {
			return "", fmt.Errorf("make a session: %w", err)
		}
	}
}

// register makes the check, and lets it pass.
func (e *Elector) register(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	service := &api.AgentServiceRegistration{
		ID:   e.serviceID(),
		Name: electionService,
		Tags: []string{"egress"},
		Meta: map[string]string{"address": e.Address},
		Check: &api.AgentServiceCheck{
			CheckID:                        e.checkID(),
			TTL:                            checkTTL.String(),
			Status:                         api.HealthPassing,
			DeregisterCriticalServiceAfter: "1m",
		},
	}
	return e.Client.Agent().ServiceRegisterOpts(service, api.ServiceRegisterOpts{}.WithContext(ctx))
}

// heartbeats lets the check pass until the term ends. It asks the agent only, so
// that servers that hang don't hold it up. A check that can't be renewed voids
// the session, which keepAlive sees.
func (e *Elector) heartbeats(term context.Context) {
	ticker := time.NewTicker(heartbeat)
	defer ticker.Stop()
	for {
		call, done := context.WithTimeout(term, 2*heartbeat)
		_ = e.Client.Agent().UpdateTTLOpts(e.checkID(), "takes part in the election", api.HealthPassing, (&api.QueryOptions{}).WithContext(call))
		done()
		select {
		case <-term.Done():
			return
		case <-ticker.C:
		}
	}
}

// keepAlive renews the session until the term ends, and ends it when the session
// is void or Consul has not answered for the session's time.
func (e *Elector) keepAlive(term context.Context, session string, cancel context.CancelCauseFunc) {
	ticker := time.NewTicker(renewEvery)
	defer ticker.Stop()
	for contact := time.Now(); ; {
		call, done := context.WithTimeout(term, renewEvery)
		entry, _, err := e.Client.Session().Renew(session, (&api.WriteOptions{}).WithContext(call))
		done()
		switch {
		case err == nil && entry == nil:
			cancel(errSessionLost)
			return
		case err == nil:
			contact = time.Now()
		case time.Since(contact) > sessionTTL:
			cancel(fmt.Errorf("%w: Consul has not answered for %s: %w", errSessionLost, sessionTTL, err))
			return
		}
		select {
		case <-term.Done():
			return
		case <-ticker.C:
		}
	}
}

// farewell bounds each of the last calls: what they would remove ends by itself,
// and a process that shall end has little time.
const farewell = 2 * time.Second

// close gives the session up, and with it the lock.
func (e *Elector) close(session string) {
	ctx, cancel := context.WithTimeout(context.Background(), farewell)
	defer cancel()
	if _, err := e.Client.Session().Destroy(session, (&api.WriteOptions{}).WithContext(ctx)); err != nil {
		e.Logger.Debug("the session was left to expire", "error", err)
	}
}

// deregister removes the check when the process ends.
func (e *Elector) deregister() {
	ctx, cancel := context.WithTimeout(context.Background(), farewell)
	defer cancel()
	if err := e.Client.Agent().ServiceDeregisterOpts(e.serviceID(), (&api.QueryOptions{}).WithContext(ctx)); err != nil {
		e.Logger.Debug("the election's check was left to Consul", "error", err)
	}
}
