package command

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/egress-proxies/egress/lease/api"
)

func proxiesCommand() *cobra.Command {
	var r remote
	command := &cobra.Command{
		Use:   "proxies [selector …]",
		Short: "List the proxies of the lease service",
		Long: `List the proxies that the lease service knows, whether they can be leased and
why not.`,
		Example: `  egress proxies
  egress proxies country=DE
  egress proxies --json | jq '.[] | select(.state != "free")'`,
		Args: cobra.ArbitraryArgs,
		RunE: func(command *cobra.Command, args []string) error {
			c, err := r.open(command)
			if err != nil {
				return err
			}
			proxies, err := c.Proxies(command.Context(), strings.Join(args, ","))
			if err != nil {
				return explain(err)
			}
			return printProxies(command.OutOrStdout(), proxies, r.asJSON)
		},
	}
	r.flags(command)
	command.AddCommand(markCommands()...)
	return command
}

func printProxies(w io.Writer, proxies []api.Proxy, asJSON bool) error {
	if asJSON {
		return printJSON(w, proxies)
	}
	rows := make([][]string, len(proxies))
	for i, p := range proxies {
		limit := "∞"
		if p.MaxLeases > 0 {
			limit = strconv.Itoa(p.MaxLeases)
		}
		rows[i] = []string{p.ID, p.Server, p.State, fmt.Sprintf("%d/%s", p.SharedActive, limit),
			p.ExitIP, p.Attributes["provider"], p.Attributes["zone"], note(p)}
	}
	return table(w, "ID SERVER STATE LEASES EXIT PROVIDER ZONE NOTE", rows)
}

// note is the one thing that a person wants to know about the state.
func note(p api.Proxy) string {
	switch {
	case p.Mark != nil:
		text := p.Mark.Mark
		if p.Mark.By != "" {
			text += " by " + p.Mark.By
		}
		if p.Mark.Reason != "" {
			text += ": " + p.Mark.Reason
		}
		return text
	case p.State == "exit_full":
		return "others have filled its exit address"
	case p.CoolingSeconds > 0:
		return "cools for " + span(p.CoolingSeconds)
	case p.State == "unhealthy" || p.State == "gone":
		return p.Reason
	case p.State == "no_credentials":
		return "no credentials named " + strconv.Quote(p.Auth)
	case len(p.BlockedTargets) > 0:
		shown := slices.Clone(p.BlockedTargets)
		if len(shown) > 3 {
			shown = append(shown[:3], fmt.Sprintf("%d more", len(p.BlockedTargets)-3))
		}
		return "blocked by " + strings.Join(shown, ", ")
	}
	return ""
}
