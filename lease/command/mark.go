package command

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/egress-proxies/egress/lease/api"
	"github.com/egress-proxies/egress/lease/client"
)

// markCommands are freeze, drain and unfreeze.
func markCommands() []*cobra.Command {
	freeze := markCommand("freeze", "Stop new leases on proxies; those that exist go on",
		func(ctx context.Context, c *client.Client, id, reason string) (api.Proxy, error) {
			return c.Freeze(ctx, id, reason)
		})
	drain := markCommand("drain", "Stop new leases and renewals on proxies, to take them away",
		func(ctx context.Context, c *client.Client, id, reason string) (api.Proxy, error) {
			return c.Drain(ctx, id, reason)
		})
	unfreeze := markCommand("unfreeze", "Let proxies be leased again",
		func(ctx context.Context, c *client.Client, id, _ string) (api.Proxy, error) {
			return c.Unfreeze(ctx, id)
		})
	return []*cobra.Command{freeze, drain, unfreeze}
}

func markCommand(verb, short string, f func(context.Context, *client.Client, string, string) (api.Proxy, error)) *cobra.Command {
	var r remote
	var reason string
	command := &cobra.Command{
		Use:     verb + " ID …",
		Short:   short,
		Example: "  egress proxies " + verb + " eg-3f2a9c01-proxy-abcdefghij",
		Args:    cobra.MinimumNArgs(1),
		RunE: func(command *cobra.Command, args []string) error {
			c, err := r.open(command)
			if err != nil {
				return err
			}
			proxies := []api.Proxy{}
			for _, id := range args {
				p, err := f(command.Context(), c, id, reason)
				if err != nil {
					return explain(err)
				}
				proxies = append(proxies, p)
			}
			return printProxies(command.OutOrStdout(), proxies, r.asJSON)
		},
	}
	r.flags(command)
	if verb != "unfreeze" {
		command.Flags().StringVar(&reason, "reason", "", "why, for people")
	}
	return command
}
