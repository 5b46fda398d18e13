// Package registry publishes endpoints in the local Consul agent and keeps
// their health checks current.
//
// It never fails a task: while Consul is down, everything is kept and published
// when it is back. docs/probe.md says what is registered.
package registry

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/egress-proxies/egress/driver/probe"
	"github.com/hashicorp/go-hclog"
)

// The defaults of Config and Endpoint.
const (
	// DefaultAddress of the local Consul agent.
	DefaultAddress = "127.0.0.1:8500"
	// DefaultService is the Consul service name.
	DefaultService = "egress-proxy"
	// DefaultDeregisterAfter is how long a check stays critical until Consul
	// removes the service by itself.
	DefaultDeregisterAfter = 10 * time.Minute
	// MinDeregisterAfter is Consul's own minimum.
	MinDeregisterAfter = time.Minute
	// DefaultTTL of an endpoint's check.
	DefaultTTL = 30 * time.Second
	// MinTTL leaves room for two lost heartbeats and a restart of the plugin.
	MinTTL = 10 * time.Second
)

// Config says how to reach Consul and what all endpoints have in common.
type Config struct {
	// Address of the Consul agent: host:port, http://…, https://… or
	// unix:///path. Empty is DefaultAddress.
	Address string
	// Token is the ACL token. Empty is TokenFile's, or none.
	Token string
	// TokenFile holds the ACL token; it is read again when it changes. At most
	// one of Token and TokenFile.
	TokenFile string
	// CAFile is a PEM file of the certificates that Consul's own is signed by;
	// it is read again when it changes. Empty is the system's.
	CAFile string
	// Service is the service name of endpoints without one. Empty is
	// DefaultService.
	Service string
	// DeregisterAfter is how long a check stays critical until Consul removes
	// the service: the last resort for a node whose driver never came back.
	// 0 is DefaultDeregisterAfter, the minimum is MinDeregisterAfter.
	DeregisterAfter time.Duration
	// Cluster is the id of the egress installation. Reconcile never touches
	// another cluster's registrations.
	Cluster string
	// Node is the id of the Nomad node. Reconcile never touches another node's
	// registrations.
	Node string
	// Logger gets Consul going away and coming back, once each. Nil is none.
	Logger hclog.Logger
}

// WithDefaults is the configuration with every zero value replaced.
func (c Config) WithDefaults() Config {
	if c.Address == "" {
		c.Address = DefaultAddress
	}
	if c.Service == "" {
		c.Service = DefaultService
	}
	if c.DeregisterAfter == 0 {
		c.DeregisterAfter = DefaultDeregisterAfter
	}
	if c.Logger == nil {
		c.Logger = hclog.NewNullLogger()
	}
	return c
}

// Validate checks the configuration. All problems are told at once; each names
// the key, the value and what is expected, and never shows the token.
func (c Config) Validate() error {
	c = c.WithDefaults()
	var problems []error
	if scheme, _, ok := strings.Cut(c.Address, "://"); ok && !slices.Contains([]string{"http", "https", "unix"}, scheme) {
		problems = append(problems, fmt.Errorf("address %q: scheme %q: want host:port, http://…, https://… or unix:///path", c.Address, scheme))
	}
	if c.Token != "" && c.TokenFile != "" {
		problems = append(problems, fmt.Errorf("token and token_file %q: want at most one of them", c.TokenFile))
	}
	if err := CheckService(c.Service); err != nil {
		problems = append(problems, err)
	}
	if c.DeregisterAfter < MinDeregisterAfter {
		problems = append(problems, fmt.Errorf("deregister_after %v: want at least %v, Consul's own minimum", c.DeregisterAfter, MinDeregisterAfter))
	}
	return errors.Join(problems...)
}

// Registry publishes endpoints. Its methods are safe for concurrent use.
type Registry struct {
	config Config
	consul *agent
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup

	// mu guards owners, what is wanted of each, and closed. It is never held
	// across a call to Consul.
	mu     sync.Mutex
	owners map[string]*owner
	closed bool
}

// New validates and does nothing else: no connection is made and no file is
// read before the first Register.
func New(config Config) (*Registry, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	config = config.WithDefaults()
	agent, err := newAgent(config)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	return &Registry{config: config, consul: agent, ctx: ctx, cancel: cancel, owners: map[string]*owner{}}, nil
}

var errClosed = errors.New("the registry is closed")

// Register publishes an endpoint and keeps it published until Deregister. It
// returns at once; an error means that the endpoint can't be published as it
// is, and nothing is done. A second Register of the name replaces the first.
//
// verdict is what is known of the proxy. The zero Verdict means that nothing is
// (the plugin was restarted): the endpoint then keeps the status that Consul
// has for it at the same address, and starts critical when Consul has none.
func (r *Registry) Register(endpoint Endpoint, verdict probe.Verdict) error {
	endpoint = endpoint.complete(r.config)
	if err := endpoint.check(endpoint.meta(r.config, verdict.ExitIP)); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return errClosed
	}
	o := r.owners[endpoint.Name]
	if o == nil {
		o = r.start(endpoint.Name)
	}
	moved := o.endpoint.Name != "" && (o.endpoint.Address != endpoint.Address || o.endpoint.Port != endpoint.Port)
	if o.want.removed != nil {
		// The name was deregistered and lives again, as when a task is
		// restarted: nothing of its earlier life counts.
		close(o.want.removed)
		o.want = want{life: o.want.life + 1, definition: o.want.definition, status: &unproven}
	}
	if !reflect.DeepEqual(o.endpoint, endpoint) {
		o.endpoint = endpoint
		o.want.definition++
	}
	switch {
	case verdict.Known():
		o.want.set(statusOf(verdict))
	case moved:
		o.want.set(unproven)
	}
	o.nudge()
	return nil
}

// Update publishes a new verdict. It returns at once. For a name that isn't
// registered, or no longer, it does nothing: a late result of a probe can't
// bring a deregistered endpoint back.
func (r *Registry) Update(name string, verdict probe.Verdict) {
	r.mu.Lock()
	defer r.mu.Unlock()
	o := r.owners[name]
	if o == nil || o.want.removed != nil || !verdict.Known() {
		return
	}
	o.want.set(statusOf(verdict))
	o.nudge()
}

// Deregister ends the publication of an endpoint and waits until Consul has
// removed it. From the call on, the name is gone for Update. When ctx ends
// first, it returns an error and goes on in the background for a bounded time.
// A name that isn't registered here is deregistered all the same: an earlier
// process may have published it.
func (r *Registry) Deregister(ctx context.Context, name string) error {
	removed, err := r.remove(name)
	if err != nil {
		return err
	}
	select {
	case <-removed:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%s is not deregistered in Consul yet, which goes on in the background: %w", serviceID(name), context.Cause(ctx))
	case <-r.ctx.Done():
		return errClosed
	}
}

// remove makes the owner of the name, or a new one, deregister it.
func (r *Registry) remove(name string) (removed <-chan struct{}, err error) {
	if !serviceForm.MatchString(name) {
		return nil, fmt.Errorf("name %q: want a DNS label", name)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil, errClosed
	}
	o := r.owners[name]
	if o == nil {
		o = r.start(name)
	}
	if o.want.removed == nil {
		o.want.removed = make(chan struct{})
		o.want.until = time.Now().Add(removalLimit)
	}
	o.nudge()
	return o.want.removed, nil
}

// Reconcile removes what an earlier process of this cluster and node published
// in the local agent and nobody owns any more. The owners are the registered
// endpoints and the names in owned. It returns the names that it is removing;
// the removal itself goes on in the background as in Deregister.
func (r *Registry) Reconcile(ctx context.Context, owned ...string) (removed []string, err error) {
	if r.config.Cluster == "" || r.config.Node == "" {
		return nil, errors.New("cluster or node is not known: stale registrations can't be told from others")
	}
	names, err := r.consul.published(ctx)
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		if slices.Contains(owned, name) || r.owns(name) {
			continue
		}
		if _, err := r.remove(name); err != nil {
			return removed, err
		}
		removed = append(removed, name)
	}
	return removed, nil
}

func (r *Registry) owns(name string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.owners[name] != nil
}

// Close ends all goroutines and waits for them, or for the end of ctx. It
// deregisters nothing: the proxies live on, and so do their registrations, for
// the next process to adopt.
func (r *Registry) Close(ctx context.Context) error {
	r.mu.Lock()
	r.closed = true
	r.mu.Unlock()
	r.cancel()
	done := make(chan struct{})
	go func() {
		r.wg.Wait()
		close(done)
	}()
	select {
	case <-done:
		r.consul.close()
		return nil
	case <-ctx.Done():
		return fmt.Errorf("calls to Consul did not end: %w", context.Cause(ctx))
	}
}
