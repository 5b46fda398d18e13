package command

import (
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/egress-proxies/egress/lease/api"
)

func targetsCommand() *cobra.Command {
	var r remote
	command := &cobra.Command{
		Use:   "targets",
		Short: "List where proxies are launched, and what room is there",
		Long: `List the targets of all nodes' providers (hypervisors, projects, API servers, and
the nodes themselves), whether each node could launch a proxy there, and what
room it sees. The nodes' plugins tell Consul; ` + "`egress check`" + ` looks from here.`,
		Example: `  egress lease targets
  egress lease targets --json | jq '.[] | select(.state != "ready")'`,
		Args: cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			c, err := r.open(command)
			if err != nil {
				return err
			}
			targets, err := c.Targets(command.Context())
			if err != nil {
				return explain(err)
			}
			return printTargets(command.OutOrStdout(), targets, r.asJSON)
		},
	}
	r.flags(command)
	return command
}

func printTargets(w io.Writer, targets []api.Target, asJSON bool) error {
	if asJSON {
		return printJSON(w, targets)
	}
	rows := make([][]string, len(targets))
	for i, t := range targets {
		rows[i] = []string{t.Provider, t.Target, t.Type, t.Node, strings.ReplaceAll(t.State, "_", " "), t.Reason, room(t.Facts), t.Advice}
	}
	return table(w, "PROVIDER TARGET TYPE NODE STATE REASON ROOM ADVICE", rows)
}

// rooms are the facts that say how much more would fit, in the order of a table.
var rooms = []struct{ fact, of, unit string }{
	{"pool_available_gib", "pool_capacity_gib", " GiB"},
	{"state_dir_available_mib", "", " MiB disk"},
	{"memory_available_mib", "memory_total_mib", " MiB memory"},
	{"instances_free", "", " instances"},
	{"cpus_free", "", " CPUs"},
	{"addresses_free", "", " addresses"},
}

// room is what is left, in words.
func room(facts map[string]string) string {
	var parts []string
	for _, r := range rooms {
		value := facts[r.fact]
		if value == "" {
			continue
		}
		if total := facts[r.of]; total != "" {
			value += " of " + total
		}
		parts = append(parts, value+r.unit)
	}
	return strings.Join(parts, ", ")
}
