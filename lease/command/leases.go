package command

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/egress-proxies/egress/lease/api"
)

// ask are the flags that say what to lease.
type ask struct {
	target, session, mode, client string
	ttl, wait                     time.Duration
	count                         int
	partial                       bool
}

func (a *ask) flags(command *cobra.Command) {
	f := command.Flags()
	f.StringVar(&a.target, "target", "", "site that will be visited: a URL or a host")
	f.StringVar(&a.session, "session", "", "name of a session, which keeps its exit address")
	f.StringVar(&a.mode, "session-mode", "", "soft: move when the proxy fails; hard: end")
	f.StringVar(&a.client, "client", "", "a name for people to read")
	f.DurationVar(&a.ttl, "ttl", 0, "how long the lease lasts without a renewal (default: the service's)")
	f.DurationVar(&a.wait, "wait", 0, "how long to queue when no proxy is free")
}

func (a *ask) request(args []string) api.Acquire {
	return api.Acquire{
		Selector: strings.Join(args, ","), Target: a.target, TTL: api.Duration(a.ttl), Session: a.session,
		SessionMode: a.mode, Count: a.count, Partial: a.partial, Client: a.client, Wait: api.Duration(a.wait),
	}
}

func acquireCommand() *cobra.Command {
	var r remote
	var a ask
	var key string
	command := &cobra.Command{
		Use:   "acquire [selector …]",
		Short: "Lease a proxy and print its URL",
		Long: `Lease a proxy and print its id and its URL.

A selector is a list of conditions that must all hold: country=DE, provider!=gcp,
"zone in (a,b)", "latency_ms<200", ipv6, !slow. Several arguments are one list.
Exit code 3 says that no proxy is free.`,
		Example: `  egress lease acquire
  egress lease acquire country=DE ipv6 --target https://shop.example --ttl 5m
  egress lease acquire --count 10 --partial --json
  egress lease acquire --wait 1m --session basket-42 --session-mode hard`,
		RunE: func(command *cobra.Command, args []string) error {
			c, err := r.open(command)
			if err != nil {
				return err
			}
			leases, err := c.Acquire(command.Context(), a.request(args), key)
			if err != nil {
				return explain(err)
			}
			return printLeases(command.OutOrStdout(), leases, r.asJSON, true)
		},
	}
	r.flags(command)
	a.flags(command)
	command.Flags().IntVar(&a.count, "count", 1, "how many leases")
	command.Flags().BoolVar(&a.partial, "partial", false, "accept fewer than --count")
	command.Flags().StringVar(&key, "key", "", "idempotency key: the same key gives the same leases")
	return command
}

func listCommand() *cobra.Command {
	var r remote
	command := &cobra.Command{
		Use:   "list",
		Short: "List the leases that are held",
		Args:  cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			c, err := r.open(command)
			if err != nil {
				return err
			}
			leases, err := c.Leases(command.Context())
			if err != nil {
				return explain(err)
			}
			return printLeases(command.OutOrStdout(), leases, r.asJSON, false)
		},
	}
	r.flags(command)
	return command
}

func renewCommand() *cobra.Command {
	var r remote
	var ttl time.Duration
	command := &cobra.Command{
		Use:     "renew ID",
		Short:   "Make a lease last longer",
		Example: `  egress lease renew k3v… --ttl 10m`,
		Args:    cobra.ExactArgs(1),
		RunE: func(command *cobra.Command, args []string) error {
			c, err := r.open(command)
			if err != nil {
				return err
			}
			l, err := c.Renew(command.Context(), args[0], ttl)
			if err != nil {
				return explain(err)
			}
			if l.MovedFrom != "" && !r.asJSON {
				fmt.Fprintf(command.ErrOrStderr(), "the lease moved from %s: %s\n", l.MovedFrom, l.MovedReason)
			}
			return printLeases(command.OutOrStdout(), []api.Lease{l}, r.asJSON, true)
		},
	}
	r.flags(command)
	command.Flags().DurationVar(&ttl, "ttl", 0, "a new length (default: as before)")
	return command
}

func reportCommand() *cobra.Command {
	var r remote
	var target string
	command := &cobra.Command{
		Use:   "report ID ok|blocked|failed",
		Short: "Say how a leased proxy did",
		Long: `Say how a leased proxy did.

blocked keeps its exit address away from the target for a while, failed from all
targets, each time twice as long; ok forgives.`,
		Example: `  egress lease report k3v… blocked --target shop.example`,
		Args:    cobra.ExactArgs(2),
		RunE: func(command *cobra.Command, args []string) error {
			c, err := r.open(command)
			if err != nil {
				return err
			}
			cooldown, err := c.Report(command.Context(), args[0], args[1], target)
			if err != nil {
				return explain(err)
			}
			out := command.OutOrStdout()
			if r.asJSON {
				return printJSON(out, api.Reported{Cooldown: cooldown})
			}
			if cooldown == nil {
				_, err = fmt.Fprintln(out, "noted")
				return err
			}
			site := "all targets"
			if cooldown.Target != "" {
				site = cooldown.Target
			}
			_, err = fmt.Fprintf(out, "exit %s cools for %s: %s\n", cooldown.Exit, site, span(cooldown.RemainingSeconds))
			return err
		},
	}
	r.flags(command)
	command.Flags().StringVar(&target, "target", "", "the site (default: the lease's)")
	return command
}

func releaseCommand() *cobra.Command {
	var r remote
	command := &cobra.Command{
		Use:     "release ID …",
		Short:   "Give leases back",
		Example: `  egress lease release k3v…`,
		Args:    cobra.MinimumNArgs(1),
		RunE: func(command *cobra.Command, args []string) error {
			c, err := r.open(command)
			if err != nil {
				return err
			}
			for _, id := range args {
				if err := c.Release(command.Context(), id); err != nil {
					return explain(err)
				}
			}
			return nil
		},
	}
	r.flags(command)
	return command
}

// printLeases prints leases; with their URLs, which hold passwords, only to who
// acquired or renewed them.
func printLeases(w io.Writer, leases []api.Lease, asJSON, withURL bool) error {
	if asJSON {
		return printJSON(w, leases)
	}
	rows := make([][]string, len(leases))
	for i, l := range leases {
		at := l.Server
		if withURL {
			at = l.URL
		}
		rows[i] = []string{l.ID, l.Proxy, at, l.ExitIP, l.ProxyState, l.Target, l.Client, span(l.TTLSeconds)}
	}
	return table(w, "ID PROXY URL EXIT STATE TARGET CLIENT LEFT", rows)
}

// span writes seconds as people read them.
func span(seconds float64) string {
	d := time.Duration(seconds * float64(time.Second))
	if d < 10*time.Second {
		return strconv.FormatFloat(seconds, 'f', 1, 64) + "s"
	}
	return d.Round(time.Second).String()
}
