// Package command is `egress check`, which shows a person the health of every
// target before and after it is wired into a Nomad node.
package command

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/spf13/cobra"

	"github.com/egress-proxies/egress/fingerprint"
)

// DefaultPath is where Debian's and Red Hat's packages of Nomad have the agent's
// configuration.
const DefaultPath = "/etc/nomad.d"

// Load makes the providers of the plugin's configuration in paths: files of the
// Nomad agent, or directories of them. Nothing is connected to yet. close may be
// nil.
type Load func(paths []string, logger hclog.Logger) (sources []fingerprint.Source, close func() error, err error)

// notReady is the error of a check that found something, with the exit code 1.
type notReady struct{ count, total int }

func (e notReady) Error() string {
	return fmt.Sprintf("%d of %d targets not ready", e.count, e.total)
}

// ExitCode is the exit code of the program.
func (notReady) ExitCode() int { return 1 }

// impossible is the error of a check that could not be made, with the exit code
// 2, so that a script can tell a typo from a dead host.
type impossible struct{ error }

// ExitCode is the exit code of the program.
func (impossible) ExitCode() int { return 2 }

// Unwrap gives the cause.
func (e impossible) Unwrap() error { return e.error }

// flags of the command.
type flags struct {
	asJSON, watch, debug bool
	interval, timeout    time.Duration
	providers            []string
}

// Command is `egress check`.
func Command(load Load) *cobra.Command {
	var f flags
	command := &cobra.Command{
		Use:   "check [path…]",
		Short: "Check every hypervisor, project and API server that the plugin's config names",
		Long: `Check every target of the plugin's configuration from where you stand, the same
way the plugin does: each hypervisor, each project, each API server, and the
node itself for process.

path is a file of the Nomad agent's configuration, or a directory of them
(default ` + DefaultPath + `), with a plugin "egress" block:

  plugin "egress" {
    config {
      provider "hv" {
        type = "kvm"
        …
      }
    }
  }

A file with only what stands in config { … } serves too: try a hypervisor before
any Nomad knows of it.

The check changes nothing on a target. What each reason means and what to do
about it: docs/health.md.

Exit codes: 0 all targets are ready, 1 some are not, 2 the check could not be
made.`,
		Example: `  egress check
  egress check new-hypervisor.hcl
  egress check --provider hv --watch
  egress check --json | jq -r '.targets[] | select(.ready | not) | .target'`,
		SilenceUsage: true,
		RunE: func(command *cobra.Command, paths []string) error {
			return run(command, load, paths, f)
		},
	}
	command.Flags().BoolVar(&f.asJSON, "json", false, "print JSON; with --watch one object per line and round")
	command.Flags().BoolVarP(&f.watch, "watch", "w", false, "check again and again until Ctrl-C")
	command.Flags().BoolVar(&f.debug, "debug", false, "log what the checks do, to standard error")
	command.Flags().DurationVar(&f.interval, "interval", 5*time.Second, "time between two rounds of --watch")
	command.Flags().DurationVar(&f.timeout, "timeout", fingerprint.DefaultTimeout, "how long one check may take")
	command.Flags().StringSliceVar(&f.providers, "provider", nil, "check only these providers")
	return command
}

func run(command *cobra.Command, load Load, paths []string, f flags) (err error) {
	if f.interval <= 0 || f.timeout <= 0 {
		return impossible{fmt.Errorf("--interval %v, --timeout %v: want both above zero", f.interval, f.timeout)}
	}
	if len(paths) == 0 {
		paths = []string{DefaultPath}
	}
	level := hclog.Off
	if f.debug {
		level = hclog.Debug
	}
	logger := hclog.New(&hclog.LoggerOptions{Name: "check", Level: level, Output: command.ErrOrStderr()})
	sources, closeAll, err := load(paths, logger)
	if err != nil {
		return impossible{err}
	}
	if closeAll != nil {
		defer func() {
			if failed := closeAll(); err == nil && failed != nil {
				err = impossible{failed}
			}
		}()
	}
	if sources, err = choose(sources, f.providers); err != nil {
		return impossible{err}
	}
	monitor := fingerprint.New(sources, fingerprint.Options{Timeout: f.timeout, Logger: logger})
	show := printer(command.OutOrStdout(), f)
	ctx := command.Context()
	for {
		targets := monitor.Once(ctx)
		if ctx.Err() != nil {
			return stopped(ctx, f)
		}
		if err := show(targets, time.Now()); err != nil {
			return impossible{err}
		}
		if !f.watch {
			return verdict(targets)
		}
		select {
		case <-ctx.Done():
			return stopped(ctx, f)
		case <-time.After(f.interval):
		}
	}
}

// stopped is how a command ends whose context has: a watch is meant to.
func stopped(ctx context.Context, f flags) error {
	if f.watch {
		return nil
	}
	return impossible{ctx.Err()}
}

// choose picks the providers that were named; none is all.
func choose(sources []fingerprint.Source, names []string) ([]fingerprint.Source, error) {
	var known []string
	for _, source := range sources {
		known = append(known, source.Name)
	}
	if len(known) == 0 {
		return nil, fmt.Errorf(`the plugin's config has no provider: add a block such as provider "local" { type = "process" }`)
	}
	for _, name := range names {
		if !slices.Contains(known, name) {
			return nil, fmt.Errorf("--provider %q: the config has none of that name: want one of %s", name, strings.Join(known, ", "))
		}
	}
	return slices.DeleteFunc(slices.Clone(sources), func(source fingerprint.Source) bool {
		return len(names) > 0 && !slices.Contains(names, source.Name)
	}), nil
}

// verdict is nil when all targets are ready.
func verdict(targets []fingerprint.Target) error {
	failed := notReady{total: len(targets)}
	for _, target := range targets {
		if !target.Ready {
			failed.count++
		}
	}
	if failed.count > 0 || failed.total == 0 {
		return failed
	}
	return nil
}
