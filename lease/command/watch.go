package command

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/egress-proxies/egress/lease/api"
)

func watchCommand() *cobra.Command {
	var r remote
	command := &cobra.Command{
		Use:     "watch",
		Short:   "Follow what changes: leases, proxies, cooldowns",
		Example: `  egress lease watch --json | jq 'select(.kind == "lease.ended")'`,
		Args:    cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			c, err := r.open(command)
			if err != nil {
				return err
			}
			out := json.NewEncoder(command.OutOrStdout())
			for {
				err := c.Watch(command.Context(), func(kind string, e api.Event) error {
					switch {
					case r.asJSON:
						return out.Encode(kindOf{kind, e})
					case kind == "hello":
						return nil
					}
					_, err := fmt.Fprintln(command.OutOrStdout(), time.Now().Format(time.TimeOnly), kind, sentence(e))
					return err
				})
				var p *api.Problem
				switch {
				case command.Context().Err() != nil:
					return nil
				case errors.As(err, &p) && p.Status < 500:
					return explain(err)
				}
				// The stream ends when the leader changes.
				fmt.Fprintln(command.ErrOrStderr(), "egress: listening again:", err)
				timer := time.NewTimer(time.Second)
				select {
				case <-command.Context().Done():
				case <-timer.C:
				}
				timer.Stop()
			}
		},
	}
	r.flags(command)
	return command
}

// kindOf is an event as one line of JSON.
type kindOf struct {
	Kind string `json:"kind"`
	api.Event
}

// sentence is an event for a person.
func sentence(e api.Event) string {
	switch {
	case e.Lease != nil:
		text := e.Lease.ID + " on " + e.Lease.Proxy
		if e.Lease.Target != "" {
			text += " for " + e.Lease.Target
		}
		if e.Lease.Client != "" {
			text += " by " + e.Lease.Client
		}
		if e.Reason != "" {
			text += ": " + e.Reason
		}
		return text
	case e.Proxy != nil:
		text := fmt.Sprintf("%s is %s", e.Proxy.ID, e.Proxy.State)
		if n := note(*e.Proxy); n != "" {
			text += ": " + n
		}
		return text
	case e.Cooldown != nil:
		site := "all targets"
		if e.Cooldown.Target != "" {
			site = e.Cooldown.Target
		}
		return fmt.Sprintf("exit %s for %s, %s", e.Cooldown.Exit, site, span(e.Cooldown.RemainingSeconds))
	}
	return ""
}
