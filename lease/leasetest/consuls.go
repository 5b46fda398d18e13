package leasetest

import (
	"context"
	"fmt"
	"time"

	"github.com/hashicorp/consul/api"
)

// Consuls are the servers of one cluster.
type Consuls []*Consul

// hangs is after what time a server is taken to be paused.
const hangs = 2 * time.Second

// Start starts all that don't run, and waits until each of them answers.
func (all Consuls) Start() {
	for _, c := range all {
		if c.cmd == nil {
			c.launch()
		}
	}
	for _, c := range all {
		c.t.Helper()
		c.ready()
	}
}

// Kill ends all of them at once.
func (all Consuls) Kill() {
	for _, c := range all {
		c.Kill()
	}
}

// Leader waits until one of the servers leads, and gives it.
func (all Consuls) Leader() (leader *Consul) {
	all[0].t.Helper()
	Until(all[0].t, startTimeout, "one of the servers of Consul leads", func() error {
		var last error
		for _, c := range all {
			if c.cmd == nil {
				continue
			}
			ctx, cancel := context.WithTimeout(context.Background(), hangs)
			address, err := c.Client.Status().LeaderWithQueryOptions((&api.QueryOptions{}).WithContext(ctx))
			cancel()
			if err == nil && address == c.raft {
				leader = c
				return nil
			}
			last = err
		}
		return fmt.Errorf("none does: %w", last)
	})
	return leader
}

// Fleet registers n proxies, p0 to p<n-1>, on a node that has no agent: whatever
// happens to the servers, they are healthy.
func (all Consuls) Fleet(n int) (ids []string) {
	t := all[0].t
	t.Helper()
	for i := range n {
		id := fmt.Sprintf("p%d", i)
		_, err := all[0].Client.Catalog().Register(&api.CatalogRegistration{
			Node: "fleet", Address: "127.0.0.1",
			Service: &api.AgentService{
				ID: "egress-" + id, Service: "egress-proxy", Address: "127.0.0.1", Port: 3000 + i,
				Meta: map[string]string{"instance": id, "provider": "test", "scheme": "http", "max_leases": "1"},
			},
		}, nil)
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, id)
	}
	return ids
}
