package provider

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/hashicorp/go-hclog"
)

// Config is one `provider "name" { type = … }` block.
type Config struct {
	// Name is the label of the block, by which tasks choose it.
	Name string
	// Type chooses the adapter: "process", "external", "kvm", "gcp", "kube".
	Type string
	// Options are the other keys of the block, which only the adapter knows.
	Options map[string]any
}

// Env is what every adapter gets beside its configuration.
type Env struct {
	// Cluster is the id of the egress installation.
	Cluster string
	// Node is the id or the name of the Nomad node; empty outside a client.
	Node string
	// StateDir is a directory of this provider's own that survives restarts of
	// the plugin and of the machine. It need not exist yet.
	StateDir string
	// Logger is never nil.
	Logger hclog.Logger
}

// Factory makes a provider. It validates and does nothing else: no connection,
// no file is opened before the first method is called, since a plugin is
// started several times at boot only to be asked for its name.
type Factory func(config Config, env Env) (Provider, error)

// Factories are the adapters by type.
type Factories map[string]Factory

// Build makes the provider that config describes. An error names the provider.
func (f Factories) Build(config Config, env Env) (Provider, error) {
	if err := CheckPlace("provider", config.Name); err != nil {
		return nil, err
	}
	factory, ok := f[config.Type]
	if !ok {
		known := strings.Join(slices.Sorted(maps.Keys(f)), ", ")
		return nil, fmt.Errorf("provider %q: type %q: want one of %s", config.Name, config.Type, known)
	}
	if env.Logger == nil {
		env.Logger = hclog.NewNullLogger()
	}
	built, err := factory(config, env)
	if err != nil {
		return nil, fmt.Errorf("provider %q: %w", config.Name, err)
	}
	return built, nil
}
