// Package command is `egress gc`, which deletes the instances that no Nomad
// allocation needs any more.
package command

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/spf13/cobra"

	"github.com/egress-proxies/egress/driver"
	"github.com/egress-proxies/egress/driver/gc"
	"github.com/egress-proxies/egress/provider"
)

// defaultConfig is where Debian's and Red Hat's packages of Nomad have the
// agent's configuration.
const defaultConfig = "/etc/nomad.d"

// flags of the command.
type flags struct {
	configs               []string
	address, token        string
	olderThan             time.Duration
	dryRun, asJSON, nodes bool
	all                   bool
}

// incomplete is the error of a run that could not look at everything or delete
// everything.
type incomplete struct{ problems, failed int }

func (e incomplete) Error() string {
	return fmt.Sprintf("%d places could not be looked at, %d instances could not be deleted", e.problems, e.failed)
}

// ExitCode is the exit code of the program.
func (incomplete) ExitCode() int { return 1 }

// Command is `egress gc`. factories are the provider types that a configuration
// may name.
func Command(factories provider.Factories) *cobra.Command {
	var f flags
	command := &cobra.Command{
		Use:   "gc",
		Short: "Delete instances that no Nomad allocation needs any more",
		Long: `Delete what is left of proxies whose Nomad allocation is over: a hypervisor was
unreachable when its task ended, or a node died for good.

The plugin deletes what its own tasks leave behind. This command is for the rest:
it lists every place that the plugin's configuration names, asks Nomad which
allocations live, and deletes the instances and the loose pieces (a disk without
a machine) of those that don't. It never touches

  - an instance of another cluster (the key "cluster" of the configuration),
  - one whose namespace the token may not read, or whose labels are incomplete,
  - one of a node that this Nomad doesn't know (it may be another region's),
  - one that is younger than --older-than.

What runs on the node itself (providers of type process) is seen on that node
only, by the same user. Look first with --dry-run.

Exit codes: 0 all was looked at and all garbage is gone, 1 otherwise.`,
		Example: `  egress gc --dry-run
  egress gc --older-than 1h
  egress gc --config /etc/nomad.d/egress.hcl --nomad-address http://10.0.0.1:4646
  egress gc --dry-run --json | jq -r '.[] | select(.action == "would delete") | .instance'`,
		Args:         cobra.NoArgs,
		SilenceUsage: true,
		RunE:         func(command *cobra.Command, _ []string) error { return run(command, factories, f) },
	}
	set := command.Flags()
	set.StringSliceVarP(&f.configs, "config", "c", []string{defaultConfig}, "files or directories of the Nomad agent's configuration")
	set.StringVar(&f.address, "nomad-address", "", "URL of a Nomad agent (default: the configuration's nomad block, else NOMAD_ADDR)")
	set.StringVar(&f.token, "nomad-token", "", "ACL token (default: the configuration's nomad block, else NOMAD_TOKEN)")
	set.DurationVar(&f.olderThan, "older-than", gc.DefaultOlderThan, "leave younger instances alone")
	set.BoolVarP(&f.dryRun, "dry-run", "n", false, "only say what would be deleted")
	set.BoolVar(&f.nodes, "unknown-nodes", false, "also delete the instances of nodes that Nomad doesn't know")
	set.BoolVarP(&f.all, "all", "a", false, "also print what is kept")
	set.BoolVar(&f.asJSON, "json", false, "print JSON: everything that was looked at")
	return command
}

func run(command *cobra.Command, factories provider.Factories, f flags) error {
	if f.olderThan <= 0 {
		return fmt.Errorf("--older-than %v: want more than 0", f.olderThan)
	}
	config, err := driver.LoadConfig(f.configs...)
	if err != nil {
		return err
	}
	providers, err := config.Build(factories, hclog.NewNullLogger())
	if err != nil {
		return err
	}
	defer closeAll(providers)
	nomad, err := gc.NewNomad(or(f.address, config.Nomad.Address), or(f.token, config.Nomad.Token))
	if err != nil {
		return err
	}
	result := gc.Run(command.Context(), gc.Options{
		Cluster: config.Cluster, Providers: providers, Nomad: nomad,
		OlderThan: f.olderThan, UnknownNodes: f.nodes, DryRun: f.dryRun,
	})
	show := table
	if f.asJSON {
		show = asJSON
	}
	if err := show(command.OutOrStdout(), result.Findings, f.all); err != nil {
		return err
	}
	for _, problem := range result.Problems {
		command.PrintErrln("not looked at:", problem)
	}
	failed := 0
	for _, finding := range result.Findings {
		if finding.Action == gc.Failed {
			failed++
		}
	}
	if len(result.Problems)+failed > 0 {
		return incomplete{problems: len(result.Problems), failed: failed}
	}
	return nil
}

func closeAll(providers map[string]provider.Provider) {
	for _, built := range providers {
		if closer, ok := built.(io.Closer); ok {
			_ = closer.Close() // the process ends
		}
	}
}

func or(value, other string) string {
	if value != "" {
		return value
	}
	return other
}

// row is one finding for programs.
type row struct {
	Action    gc.Action  `json:"action"`
	Why       string     `json:"why"`
	Provider  string     `json:"provider"`
	Zone      string     `json:"zone,omitempty"`
	Instance  string     `json:"instance"`
	State     string     `json:"state"`
	Pieces    []string   `json:"pieces,omitempty"`
	Namespace string     `json:"namespace"`
	Job       string     `json:"job"`
	Alloc     string     `json:"alloc"`
	Task      string     `json:"task"`
	CreatedAt *time.Time `json:"created_at,omitempty"`
}

func asJSON(out io.Writer, findings []gc.Finding, _ bool) error {
	rows := make([]row, 0, len(findings))
	for _, finding := range findings {
		instance, labels := finding.Instance, finding.Instance.Labels
		one := row{
			Action: finding.Action, Why: finding.Why, Provider: finding.Provider, Zone: instance.Zone,
			Instance: instance.Name, State: instance.State.String(), Pieces: instance.Pieces,
			Namespace: labels.Namespace, Job: labels.Job, Alloc: labels.Alloc, Task: labels.Task,
		}
		if !instance.CreatedAt.IsZero() {
			one.CreatedAt = &instance.CreatedAt
		}
		rows = append(rows, one)
	}
	encoder := json.NewEncoder(out)
	encoder.SetIndent("", "  ")
	return encoder.Encode(rows)
}

func table(out io.Writer, findings []gc.Finding, all bool) error {
	shown := slices.DeleteFunc(slices.Clone(findings), func(finding gc.Finding) bool {
		return !all && finding.Action == gc.Keep
	})
	if len(shown) == 0 {
		_, err := fmt.Fprintf(out, "Nothing to delete: %d instances looked at.\n", len(findings))
		return err
	}
	writer := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	_, err := fmt.Fprintln(writer, "ACTION\tPROVIDER\tINSTANCE\tSTATE\tJOB\tWHY")
	for _, finding := range shown {
		instance := finding.Instance
		_, rowErr := fmt.Fprintf(writer, "%s\t%s\t%s\t%s\t%s\t%s\n", finding.Action, finding.Provider, instance.Ref,
			instance.State, instance.Labels.Job, finding.Why)
		err = errors.Join(err, rowErr)
	}
	return errors.Join(err, writer.Flush())
}
