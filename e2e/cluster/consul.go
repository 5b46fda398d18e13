package cluster

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"github.com/hashicorp/consul/api"
)

// Consul is the Consul agent: a server of one, whose data survive a restart.
type Consul struct {
	agent
	// Client talks to it.
	Client *api.Client
	// Address is "127.0.0.1:port" of its HTTP API.
	Address string
}

// consulConfig is the agent's configuration; the numbers are its ports.
const consulConfig = `
server           = true
bootstrap_expect = 1
datacenter       = "dc1"
node_name        = "e2e"
data_dir         = %q
bind_addr        = "127.0.0.1"
client_addr      = "127.0.0.1"
log_level        = "info"

disable_update_check = true
leave_on_terminate   = false

ports {
  http     = %d
  server   = %d
  serf_lan = %d
  serf_wan = -1
  dns      = -1
  grpc     = -1
  https    = -1
}

performance { raft_multiplier = 1 }

# All clients are one address here; the default is 200.
limits { http_max_conns_per_client = 2000 }
`

func newConsul(c *Cluster) (*Consul, error) {
	http := c.ports.next()
	address := "127.0.0.1:" + strconv.Itoa(http)
	file := filepath.Join(c.Dir, "consul.hcl")
	text := fmt.Sprintf(consulConfig, filepath.Join(c.Dir, "consul"), http, c.ports.next(), c.ports.next())
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		return nil, err
	}
	client, err := api.NewClient(&api.Config{Address: address, Scheme: "http"})
	if err != nil {
		return nil, err
	}
	return &Consul{
		agent: agent{
			name: "consul",
			bin:  c.config.ConsulBin,
			args: []string{"agent", "-config-file", file},
			dir:  c.Dir,
			env:  c.env(),
		},
		Client:  client,
		Address: address,
	}, nil
}

// Start starts the agent, also again after Kill, and waits until it has a
// leader and can be written to.
func (c *Consul) Start(ctx context.Context) error {
	if err := c.start(); err != nil {
		return err
	}
	return c.ready(ctx, "Consul can be written to", func(ctx context.Context) error {
		pair := &api.KVPair{Key: "e2e/ready", Value: []byte("1")}
		if _, err := c.Client.KV().Put(pair, (&api.WriteOptions{}).WithContext(ctx)); err != nil {
			return err
		}
		// The agent's own node must be in the catalog before services can be.
		nodes, _, err := c.Client.Catalog().Nodes((&api.QueryOptions{}).WithContext(ctx))
		if err == nil && len(nodes) == 0 {
			err = fmt.Errorf("no node in the catalog")
		}
		return err
	})
}

// Services are the instances of a service with their checks, whatever their
// state.
func (c *Consul) Services(ctx context.Context, name string) ([]*api.ServiceEntry, error) {
	entries, _, err := c.Client.Health().Service(name, "", false, (&api.QueryOptions{}).WithContext(ctx))
	return entries, err
}

// Passing are the instances of a service that are healthy.
func (c *Consul) Passing(ctx context.Context, name string) ([]*api.ServiceEntry, error) {
	entries, _, err := c.Client.Health().Service(name, "", true, (&api.QueryOptions{}).WithContext(ctx))
	return entries, err
}
