package driver

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/hashicorp/go-hclog"

	"github.com/egress-proxies/egress/provider"
)

func newProviderConfigs(raw map[string]map[string]any, p *problems) []provider.Config {
	configs := make([]provider.Config, 0, len(raw))
	for _, name := range slices.Sorted(maps.Keys(raw)) {
		in := p.in(fmt.Sprintf("provider %q", name))
		given := options(raw[name], providerKeys, in)
		kind, _ := given["type"].(string)
		delete(given, "type")
		if kind == "" {
			in.missing("type", `want one such as "process"`)
			continue
		}
		configs = append(configs, provider.Config{Name: name, Type: kind, Options: given})
	}
	return configs
}

// Build makes the providers of a configuration, by name. All that is wrong with
// any of them is told at once, in one line.
func (c Config) Build(factories provider.Factories, logger hclog.Logger) (map[string]provider.Provider, error) {
	node, _ := os.Hostname() // Nomad's own default for a node's name
	built := make(map[string]provider.Provider, len(c.Providers))
	var failed []string
	for _, config := range c.Providers {
		made, err := factories.Build(config, provider.Env{
			Cluster:  c.Cluster,
			Node:     node,
			StateDir: filepath.Join(c.StateDir, "providers", config.Name),
			Logger:   logger.Named(config.Name),
		})
		if err != nil {
			failed = append(failed, oneLine(err))
			continue
		}
		built[config.Name] = made
	}
	if len(failed) > 0 {
		return nil, errors.New(strings.Join(failed, "; "))
	}
	return built, nil
}

// place is a configured provider.
type place struct {
	provider.Provider
	name string
	kind string
}

// onNode is true when the instances run on the Nomad node itself, so that they
// listen on the node's addresses and on ports that Nomad reserved.
func (p *place) onNode() bool { return p.kind == "process" }
