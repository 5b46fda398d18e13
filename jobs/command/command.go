// Package command is `egress job`: the jobspecs that come with egress, rendered,
// planned, submitted and followed until their proxies work.
package command

import (
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/hashicorp/nomad/api"
	"github.com/spf13/cobra"

	"github.com/egress-proxies/egress/jobs"
)

// The exit codes, beside 0.
const (
	codeError       = 1 // the question could not be answered
	codeFailed      = 2 // the deployment failed
	codeUnplaced    = 3 // some allocations find no node
	codeInterrupted = 130
)

// exit is an error with an exit code.
type exit struct {
	error
	code int
}

// ExitCode is the exit code of the program.
func (e exit) ExitCode() int { return e.code }

// Unwrap gives the cause.
func (e exit) Unwrap() error { return e.error }

// flags that all verbs share.
type flags struct {
	address, namespace string
	vars               []string
	asJSON             bool
}

// Command is `egress job`.
func Command() *cobra.Command {
	command := &cobra.Command{
		Use:   "job",
		Short: "Run the jobspecs that come with egress",
		Long: `Run, plan and render the jobspecs that come with egress, or one of your own.

A jobspec is named ("process"), or is a path to a file. Its variables are set
with --var name=value: a string as it is, everything else as HCL. The Nomad agent
is that of NOMAD_ADDR or --address, with the token in NOMAD_TOKEN.

Exit codes: 0 as wanted, 1 wrong usage or no answer from Nomad, 2 the deployment
failed, 3 some proxies find no node, 130 Ctrl-C while following (the job goes on).`,
		Example: `  egress job list
  egress job run process --var count=10
  egress job plan kvm --var 'provider=hv' --var count=3
  egress job render process --var count=10 > fleet.nomad.hcl`,
		Args: cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error { return command.Help() },
	}
	command.AddCommand(listCommand(), renderCommand(), planCommand(), runCommand())
	return command
}

// add declares the shared flags.
func (f *flags) add(command *cobra.Command, json string) {
	command.Flags().StringArrayVar(&f.vars, "var", nil, "set a variable of the jobspec, name=value; may be repeated")
	command.Flags().StringVar(&f.address, "address", "", "URL of the Nomad agent (default: NOMAD_ADDR, else http://127.0.0.1:4646)")
	command.Flags().StringVar(&f.namespace, "namespace", "", "Nomad namespace (default: NOMAD_NAMESPACE, else default)")
	command.Flags().BoolVar(&f.asJSON, "json", false, json)
	command.SilenceUsage = true
	command.Args = cobra.ExactArgs(1)
	command.ValidArgsFunction = func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		return jobs.Names(), cobra.ShellCompDirectiveDefault
	}
}

func (f *flags) client() (*api.Client, error) {
	config := api.DefaultConfig() // reads NOMAD_ADDR and its like
	from := "NOMAD_ADDR"
	if f.address != "" {
		config.Address, from = f.address, "--address"
	}
	if err := checkAddress(config.Address); err != nil {
		return nil, fmt.Errorf("%s %q: %w", from, config.Address, err)
	}
	if f.namespace != "" {
		config.Namespace = f.namespace
	}
	client, err := api.NewClient(config)
	if err != nil {
		return nil, fmt.Errorf("%s %q: %w", from, config.Address, err)
	}
	return client, nil
}

// checkAddress refuses what Nomad's client would stumble over later.
func checkAddress(address string) error {
	parsed, err := url.Parse(address)
	if err == nil && parsed.Scheme == "unix" && strings.HasPrefix(parsed.Path, "/") {
		return nil
	}
	if err != nil || parsed.Hostname() == "" || (parsed.Scheme != "http" && parsed.Scheme != "https") {
		return errors.New("want a URL such as http://127.0.0.1:4646")
	}
	return nil
}

// spec reads a jobspec and its variables.
func (f *flags) spec(name string) (source string, variables map[string]string, err error) {
	if slices.Contains(jobs.Names(), name) {
		source, err = jobs.Source(name)
	} else {
		source, err = readFile(name)
	}
	if err != nil {
		return "", nil, err
	}
	variables = make(map[string]string, len(f.vars))
	for _, given := range f.vars {
		key, value, ok := strings.Cut(given, "=")
		if !ok || key == "" {
			return "", nil, fmt.Errorf("--var %q: want name=value", given)
		}
		variables[key] = value
	}
	missing, err := jobs.Missing(source, variables)
	if err != nil {
		return "", nil, err
	}
	if len(missing) > 0 {
		return "", nil, fmt.Errorf("no value for %s: set it with --var %s=… (egress job list %s explains)",
			strings.Join(missing, ", "), missing[0], name)
	}
	return source, variables, nil
}

// readFile reads a jobspec that is a file, and teaches when it isn't there.
func readFile(name string) (string, error) {
	text, err := os.ReadFile(name)
	if errors.Is(err, os.ErrNotExist) && filepath.Base(name) == name && filepath.Ext(name) == "" {
		_, err = jobs.Source(name) // It tells the known names.
	}
	return string(text), err
}

// load gives the parsed job and a client to go on with.
func (f *flags) load(command *cobra.Command, name string) (*api.Client, *api.Job, error) {
	source, variables, err := f.spec(name)
	if err != nil {
		return nil, nil, err
	}
	client, err := f.client()
	if err != nil {
		return nil, nil, err
	}
	job, err := jobs.Parse(command.Context(), client, source, variables)
	if err != nil {
		return nil, nil, err
	}
	if f.namespace != "" {
		job.Namespace = &f.namespace
	}
	return client, job, nil
}
