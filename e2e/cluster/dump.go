package cluster

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"sort"
	"time"

	consul "github.com/hashicorp/consul/api"
	nomad "github.com/hashicorp/nomad/api"

	"github.com/egress-proxies/egress/e2e/guard"
)

// Dump writes what a person needs to see why something went wrong: jobs,
// allocations and their events, services and their checks, processes, and the
// end of each log. It says so where it can't find out.
func (c *Cluster) Dump(ctx context.Context, w io.Writer) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if c.Nomad != nil {
		report(w, "allocations", c.dumpAllocs(ctx, w))
	}
	if c.Consul != nil {
		report(w, "services", c.dumpServices(ctx, w))
	}
	processes, err := guard.Processes(c.Dir)
	for _, p := range processes {
		_, _ = fmt.Fprintf(w, "process %s\n", p)
	}
	report(w, "processes", err)
	if c.Consul != nil {
		dumpTail(w, c.Consul.logFile(), 2<<10)
	}
	if c.Nomad != nil {
		dumpTail(w, c.Nomad.logFile(), 24<<10)
	}
}

func report(w io.Writer, what string, err error) {
	if err != nil {
		_, _ = fmt.Fprintf(w, "%s: %v\n", what, err)
	}
}

func (c *Cluster) dumpAllocs(ctx context.Context, w io.Writer) error {
	allocs, _, err := c.Nomad.Client.Allocations().List((&nomad.QueryOptions{}).WithContext(ctx))
	if err != nil {
		return err
	}
	sort.Slice(allocs, func(i, j int) bool { return allocs[i].CreateIndex < allocs[j].CreateIndex })
	for _, alloc := range allocs {
		_, _ = fmt.Fprintf(w, "alloc %s %s: %s, desired %s %s\n",
			alloc.ID, alloc.Name, alloc.ClientStatus, alloc.DesiredStatus, alloc.ClientDescription)
		for task, state := range alloc.TaskStates {
			for _, event := range state.Events {
				at := time.Unix(0, event.Time).UTC().Format("15:04:05.000")
				_, _ = fmt.Fprintf(w, "  %s %s: %s: %s\n", at, task, event.Type, event.DisplayMessage)
			}
		}
	}
	return nil
}

func (c *Cluster) dumpServices(ctx context.Context, w io.Writer) error {
	checks, _, err := c.Consul.Client.Health().State(consul.HealthAny, (&consul.QueryOptions{}).WithContext(ctx))
	for _, check := range checks {
		if check.ServiceID != "" {
			_, _ = fmt.Fprintf(w, "service %s: %s: %s\n", check.ServiceID, check.Status, check.Output)
		}
	}
	return err
}

// dumpTail writes the last limit bytes of a file, from the start of a line.
func dumpTail(w io.Writer, file string, limit int64) {
	data, err := os.ReadFile(file)
	if err != nil {
		report(w, "log", err)
		return
	}
	if cut := int64(len(data)) - limit; cut > 0 {
		data = data[cut:]
		data = data[bytes.IndexByte(data, '\n')+1:]
	}
	_, _ = fmt.Fprintf(w, "--- end of %s\n%s\n", file, data)
}
