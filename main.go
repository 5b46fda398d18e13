// Command egress runs fleets of egress proxies as Nomad workloads: started by a
// Nomad client it is the task driver, otherwise the command line.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/plugins/base"
	"github.com/spf13/cobra"

	"github.com/egress-proxies/egress/driver"
	gc "github.com/egress-proxies/egress/driver/command"
	_ "github.com/egress-proxies/egress/driver/loghold/early"
	"github.com/egress-proxies/egress/fingerprint"
	check "github.com/egress-proxies/egress/fingerprint/command"
	"github.com/egress-proxies/egress/internal/version"
	jobs "github.com/egress-proxies/egress/jobs/command"
	lease "github.com/egress-proxies/egress/lease/command"
	"github.com/egress-proxies/egress/provider"
	"github.com/egress-proxies/egress/provider/external"
	"github.com/egress-proxies/egress/provider/gcp"
	"github.com/egress-proxies/egress/provider/kube"
	"github.com/egress-proxies/egress/provider/kvm"
	images "github.com/egress-proxies/egress/provider/kvm/command"
	"github.com/egress-proxies/egress/provider/process"
	// The hidden verbs must be seen before the packages below are initialised.
	_ "github.com/egress-proxies/egress/provider/process/early"
)

// factories are the provider types that a configuration can name.
var factories = provider.Factories{
	"process":  process.New,
	"external": external.New,
	"kvm":      kvm.New,
	"gcp":      gcp.New,
	"kube":     kube.New,
}

func main() {
	if os.Getenv(base.Handshake.MagicCookieKey) == base.Handshake.MagicCookieValue {
		driver.Serve(driver.Options{Factories: factories, Version: version.Get().Version})
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := root().ExecuteContext(ctx)
	stop()
	if err != nil {
		os.Exit(exitCode(err))
	}
}

// exitCode lets a command choose its own, for scripts.
func exitCode(err error) int {
	var coded interface{ ExitCode() int }
	if errors.As(err, &coded) {
		return coded.ExitCode()
	}
	return 1
}

func root() *cobra.Command {
	root := &cobra.Command{
		Use:   "egress",
		Short: "Fleets of egress proxies as Nomad workloads",
		Long: `egress runs fleets of egress proxies as Nomad workloads.

This binary is a Nomad task driver: put it into the plugin_dir of a Nomad client,
add a plugin "egress" block to the client's configuration, and Nomad starts it.
The verbs below are for people and for the lease service.`,
		Example: `  egress check                          is every target usable?
  egress job run process                run a fleet of proxies on the nodes
  egress lease serve                    hand working proxies to crawlers
  egress lease acquire country=DE       lease one
  egress proxies                        what is there, and what works
  egress gc --dry-run                   what is left that no allocation needs?
  egress images list                    what do the hypervisors keep?
  egress proxy --listen 127.0.0.1:3128  run the built-in forward proxy`,
		SilenceUsage: true,
	}
	root.AddCommand(versionCommand())
	root.AddCommand(process.Commands()...)
	root.AddCommand(lease.Commands()...)
	root.AddCommand(jobs.Command(), check.Command(sources), gc.Command(factories), images.Command(providers))
	return root
}

// sources are the providers of the plugin's configuration, for egress check.
func sources(paths []string, logger hclog.Logger) ([]fingerprint.Source, func() error, error) {
	config, err := driver.LoadConfig(paths...)
	if err != nil {
		return nil, nil, err
	}
	built, err := config.Build(factories, logger)
	if err != nil {
		return nil, nil, err
	}
	var list []fingerprint.Source
	for _, block := range config.Providers {
		list = append(list, fingerprint.Source{Name: block.Name, Type: block.Type, Provider: built[block.Name]})
	}
	return list, nil, nil
}

// providers are those of the plugin's configuration by name, for egress images.
func providers(paths []string, logger hclog.Logger) (map[string]provider.Provider, func() error, error) {
	list, closeAll, err := driver.Sources(factories)(paths, logger)
	byName := make(map[string]provider.Provider, len(list))
	for _, source := range list {
		byName[source.Name] = source.Provider
	}
	return byName, closeAll, err
}

func versionCommand() *cobra.Command {
	var asJSON bool
	command := &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			info := version.Get()
			if asJSON {
				return json.NewEncoder(command.OutOrStdout()).Encode(info)
			}
			_, err := fmt.Fprintln(command.OutOrStdout(), info)
			return err
		},
	}
	command.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return command
}
