// Package command is the command line of the lease service.
package command

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Commands are `egress lease` and `egress proxies`.
func Commands() []*cobra.Command {
	lease := &cobra.Command{
		Use:   "lease",
		Short: "Lease proxies, and run the service that leases them",
		Example: `  egress lease serve                              run the service
  egress lease acquire country=DE --ttl 5m        lease a proxy
  egress lease report ID blocked                  say that the target refused it
  egress lease release ID                         give it back`,
	}
	lease.AddCommand(serveCommand(), acquireCommand(), listCommand(), renewCommand(), reportCommand(), releaseCommand(), execCommand(), targetsCommand(), watchCommand())
	return []*cobra.Command{lease, proxiesCommand()}
}

// envPrefix starts the environment variables that stand for flags.
const envPrefix = "EGRESS_LEASE_"

// envName is the environment variable of a flag.
func envName(flag string) string {
	return envPrefix + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// fromEnv takes flags that were not given from the environment.
func fromEnv(flags *pflag.FlagSet) error {
	var first error
	flags.VisitAll(func(f *pflag.Flag) {
		value, ok := os.LookupEnv(envName(f.Name))
		if f.Changed || !ok || first != nil || f.Name == "help" {
			return
		}
		if err := flags.Set(f.Name, value); err != nil {
			first = fmt.Errorf("%s=%q: %w", envName(f.Name), value, err)
		}
	})
	return first
}

// printJSON writes a value for machines.
func printJSON(w io.Writer, v any) error {
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	encoder.SetEscapeHTML(false)
	return encoder.Encode(v)
}

// table writes rows for people.
func table(w io.Writer, header string, rows [][]string) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, strings.ReplaceAll(header, " ", "\t"))
	for _, row := range rows {
		for i, cell := range row {
			if cell == "" {
				row[i] = "-"
			}
		}
		fmt.Fprintln(t, strings.Join(row, "\t"))
	}
	return t.Flush()
}
