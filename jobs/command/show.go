package command

import (
	"encoding/json"
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/egress-proxies/egress/jobs"
)

func listCommand() *cobra.Command {
	var asJSON bool
	command := &cobra.Command{
		Use:   "list [jobspec]",
		Short: "List the jobspecs, or the variables of one",
		Example: `  egress job list
  egress job list process`,
		Args:         cobra.MaximumNArgs(1),
		SilenceUsage: true,
		RunE: func(command *cobra.Command, args []string) error {
			out := command.OutOrStdout()
			if len(args) == 0 {
				return list(out, asJSON)
			}
			source, err := jobs.Source(args[0])
			if err != nil {
				return err
			}
			declared, err := jobs.Declared(source)
			if err != nil {
				return err
			}
			if asJSON {
				return json.NewEncoder(out).Encode(declared)
			}
			return writeVariables(out, declared)
		},
	}
	command.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return command
}

func list(w io.Writer, asJSON bool) error {
	if asJSON {
		return json.NewEncoder(w).Encode(jobs.Names())
	}
	tab := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, name := range jobs.Names() {
		source, err := jobs.Source(name)
		if err != nil {
			return err
		}
		fmt.Fprintf(tab, "%s\t%s\n", name, jobs.Summary(source))
	}
	return tab.Flush()
}

func writeVariables(w io.Writer, declared []jobs.Variable) error {
	tab := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tab, "VARIABLE\tTYPE\tDEFAULT\tDESCRIPTION")
	for _, variable := range declared {
		value := variable.Default
		if value == "" {
			value = "(must be set)"
		}
		fmt.Fprintf(tab, "%s\t%s\t%s\t%s\n", variable.Name, variable.Type, value, variable.Description)
	}
	return tab.Flush()
}

func renderCommand() *cobra.Command {
	var f flags
	command := &cobra.Command{
		Use:   "render <jobspec>",
		Short: "Print the jobspec with its variables set",
		Long: `Print a jobspec whose variables have the given values as their defaults: a file
that nomad job run takes as it is. With --json the job as the Nomad agent parses
it, which is the only case in which an agent is asked.`,
		Example: `  egress job render process --var count=10 > fleet.nomad.hcl
  egress job render process --json | jq .TaskGroups`,
		RunE: func(command *cobra.Command, args []string) error {
			if f.asJSON {
				_, job, err := f.load(command, args[0])
				if err != nil {
					return err
				}
				return encode(command.OutOrStdout(), job)
			}
			source, variables, err := f.spec(args[0])
			if err != nil {
				return err
			}
			text, err := jobs.Render(source, variables)
			if err != nil {
				return err
			}
			_, err = io.WriteString(command.OutOrStdout(), text)
			return err
		},
	}
	f.add(command, "print the job as Nomad's API has it")
	return command
}

func planCommand() *cobra.Command {
	var f flags
	command := &cobra.Command{
		Use:   "plan <jobspec>",
		Short: "Show what a run would change, and which placements would fail and why",
		Long: `Ask the scheduler what a run would do, without doing it: the difference from the
job that runs now, what happens to its proxies, and, for each proxy that would
find no node, what each node lacks.

Exit codes: 0 everything would be placed, 1 no answer, 3 some would not be.`,
		Example: `  egress job plan process --var count=20`,
		RunE: func(command *cobra.Command, args []string) error {
			client, job, err := f.load(command, args[0])
			if err != nil {
				return err
			}
			plan, err := jobs.NewPlan(command.Context(), client, job)
			if err != nil {
				return err
			}
			out := command.OutOrStdout()
			if f.asJSON {
				err = encode(out, plan)
			} else {
				err = writePlan(out, plan)
			}
			if err == nil && len(plan.Refusals) > 0 {
				err = exit{fmt.Errorf("some allocations would find no node"), codeUnplaced}
			}
			return err
		},
	}
	f.add(command, "print JSON")
	return command
}

func writePlan(w io.Writer, plan jobs.Plan) error {
	if plan.Warnings != "" {
		fmt.Fprintf(w, "Warnings: %s\n", plan.Warnings)
	}
	if err := jobs.WriteDiff(w, plan.Diff); err != nil {
		return err
	}
	if err := jobs.WriteUpdates(w, plan.Updates); err != nil {
		return err
	}
	return writeRefusals(w, plan.Refusals)
}

func writeRefusals(w io.Writer, refusals []jobs.Refusal) error {
	for _, refusal := range refusals {
		fmt.Fprintf(w, "\nNo node takes all of group %q:\n", refusal.Group)
		for _, node := range refusal.Nodes {
			for _, reason := range node.Reasons {
				fmt.Fprintf(w, "  %s: %s\n", node.Node, reason)
			}
		}
		for _, other := range refusal.Others {
			fmt.Fprintf(w, "  scheduler: %s\n", other)
		}
	}
	return nil
}

func encode(w io.Writer, value any) error {
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	return encoder.Encode(value)
}
