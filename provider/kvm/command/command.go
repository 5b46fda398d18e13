// Package command is `egress images`, which shows a person the images that
// hypervisors keep, removes those that nobody needs, and brings new ones there
// before they are wanted.
package command

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/spf13/cobra"

	"github.com/egress-proxies/egress/provider"
	"github.com/egress-proxies/egress/provider/kvm/image"
)

// DefaultPath is where Debian's and Red Hat's packages of Nomad have the agent's
// configuration.
const DefaultPath = "/etc/nomad.d"

// Load makes the providers of the plugin's configuration in paths, by name.
// Nothing is connected to yet. close may be nil.
type Load func(paths []string, logger hclog.Logger) (providers map[string]provider.Provider, close func() error, err error)

// Keeper is a provider whose hosts keep images, as *kvm.Provider does.
type Keeper interface {
	provider.Provider
	// Targets are the pools of its hosts.
	Targets() []image.Target
	// Images is the catalog of its configuration.
	Images() image.Catalog
	// NewCache makes a cache that shares nothing with the plugin's. The caller
	// closes it.
	NewCache() *image.Cache
}

// coded is an error with an exit code.
type coded struct {
	error
	code int
}

// ExitCode is the exit code of the program.
func (c coded) ExitCode() int { return c.code }

// Unwrap gives the cause.
func (c coded) Unwrap() error { return c.error }

// The exit codes: some places failed, nothing could be done, Ctrl-C.
const (
	exitSome        = 1
	exitImpossible  = 2
	exitInterrupted = 130
)

func impossible(err error) error { return coded{err, exitImpossible} }

// flags that all verbs have.
type flags struct {
	configs, providers, targets []string
	asJSON, debug               bool
	timeout                     time.Duration
}

// defaultTimeout is how long one host may take to list what it has.
const defaultTimeout = 30 * time.Second

// Command is `egress images`.
func Command(load Load) *cobra.Command {
	command := &cobra.Command{
		Use:   "images",
		Short: "List, prune and warm the images that hypervisors keep",
		Long: `The images that machines boot from are kept in the storage pool of each
hypervisor: fetched once, by the first start that wants them, and named by their
content. These verbs read the plugin's own configuration, like egress check, and
work from where you stand.

  egress images list    what each hypervisor has, and what uses it
  egress images prune   remove what nothing uses
  egress images warm    fetch before the first start does

Exit codes: 0 all is well, 1 some hypervisors could not be looked at or did not
take an image, 2 nothing could be done: wrong path, wrong configuration, unknown
name; 130 after Ctrl-C.`,
		Example: `  egress images list
  egress images prune --dry-run
  egress images warm debian-12
  egress images list --json | jq -r '.[] | select(.state == "partial") | .volume'`,
		Args: cobra.NoArgs,
	}
	command.AddCommand(listCommand(load), pruneCommand(load), warmCommand(load))
	return command
}

// add declares the flags that all verbs have.
func (f *flags) add(command *cobra.Command) {
	set := command.Flags()
	set.StringSliceVarP(&f.configs, "config", "c", []string{DefaultPath}, "files or directories of the Nomad agent's configuration")
	set.StringSliceVar(&f.providers, "provider", nil, "only these providers")
	set.StringSliceVar(&f.targets, "target", nil, "only these hosts (a, or a/POOL)")
	set.BoolVar(&f.asJSON, "json", false, "print JSON")
	set.BoolVar(&f.debug, "debug", false, "log every call to a hypervisor, to standard error")
	set.DurationVar(&f.timeout, "timeout", defaultTimeout, "how long one hypervisor may take to answer")
}

// place is one pool of one provider.
type place struct {
	provider string
	keeper   Keeper
	target   image.Target
}

// String is how a person finds it: hv/a/default.
func (p place) String() string { return p.provider + "/" + p.target.String() }

// open loads the configuration and gives the places that the flags choose.
func (f *flags) open(command *cobra.Command, load Load) (places []place, closeAll func(), err error) {
	if f.timeout <= 0 {
		return nil, nil, impossible(fmt.Errorf("--timeout %v: want more than 0", f.timeout))
	}
	level := hclog.Off
	if f.debug {
		level = hclog.Debug
	}
	logger := hclog.New(&hclog.LoggerOptions{Name: "images", Level: level, Output: command.ErrOrStderr()})
	providers, closing, err := load(f.configs, logger)
	if err != nil {
		return nil, nil, impossible(err)
	}
	closeAll = func() {
		if closing != nil {
			_ = closing() // the process ends
		}
	}
	if places, err = f.choose(providers); err != nil {
		closeAll()
		return nil, nil, impossible(err)
	}
	return places, closeAll, nil
}

// choose picks the places that were named; none is all.
func (f *flags) choose(providers map[string]provider.Provider) ([]place, error) {
	var all, chosen []place
	var names []string
	for _, name := range slices.Sorted(maps.Keys(providers)) {
		keeper, ok := providers[name].(Keeper)
		if !ok {
			continue
		}
		names = append(names, name)
		if len(f.providers) > 0 && !slices.Contains(f.providers, name) {
			continue
		}
		for _, target := range keeper.Targets() {
			all = append(all, place{name, keeper, target})
		}
	}
	if len(names) == 0 {
		return nil, errors.New("the plugin's config has no provider of type kvm: only those keep images")
	}
	for _, name := range f.providers {
		if !slices.Contains(names, name) {
			return nil, fmt.Errorf("--provider %q: the config has none of that name and type kvm: want one of %s", name, strings.Join(names, ", "))
		}
	}
	if len(f.targets) == 0 {
		return all, nil
	}
	for _, wanted := range f.targets {
		found := slices.DeleteFunc(slices.Clone(all), func(p place) bool { return !p.is(wanted) })
		if len(found) == 0 {
			return nil, fmt.Errorf("--target %q: no such host is configured: want one of %s", wanted, known(all))
		}
		chosen = append(chosen, found...)
	}
	return chosen, nil
}

// is says whether a person may have meant the place: "a", "a/default", "hv/a/default".
func (p place) is(wanted string) bool {
	host, _, _ := strings.Cut(p.target.String(), "/")
	return wanted == host || wanted == p.target.String() || wanted == p.String()
}

func known(places []place) string {
	var names []string
	for _, p := range places {
		names = append(names, p.target.String())
	}
	return strings.Join(names, ", ")
}

// ended is the error of a verb, given how many places failed.
func ended(ctx context.Context, failed, total int, what string) error {
	switch {
	case ctx.Err() != nil:
		return coded{errors.New("interrupted"), exitInterrupted}
	case failed > 0:
		return coded{fmt.Errorf("%d of %d %s", failed, total, what), exitSome}
	default:
		return nil
	}
}
