package driver

import (
	"errors"
	"io"

	"github.com/hashicorp/go-hclog"

	"github.com/egress-proxies/egress/fingerprint"
	"github.com/egress-proxies/egress/provider"
)

// Sources reads the plugin's configuration and gives its providers for `egress
// check`: the same ones as the plugin's own, which nothing has connected yet.
func Sources(factories provider.Factories) func(paths []string, logger hclog.Logger) (
	sources []fingerprint.Source, closeAll func() error, err error,
) {
	return func(paths []string, logger hclog.Logger) ([]fingerprint.Source, func() error, error) {
		config, err := LoadConfig(paths...)
		if err != nil {
			return nil, nil, err
		}
		built, err := config.Build(factories, logger)
		if err != nil {
			return nil, nil, err
		}
		var sources []fingerprint.Source
		for _, block := range config.Providers {
			sources = append(sources, fingerprint.Source{Name: block.Name, Type: block.Type, Provider: built[block.Name]})
		}
		return sources, func() error { return closeProviders(built) }, nil
	}
}

func closeProviders(built map[string]provider.Provider) error {
	var failed []error
	for _, one := range built {
		if closer, ok := one.(io.Closer); ok {
			failed = append(failed, closer.Close())
		}
	}
	return errors.Join(failed...)
}
