package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"github.com/hashicorp/nomad/api"
)

// Client is another Nomad client of the cluster, on the same machine, with a
// plugin, state and task ports of its own.
type Client struct {
	agent
	// Name is the name of its node.
	Name string
	// StateDir is where its plugin keeps its state.
	StateDir string

	nomad *api.Client
}

// clientConfig is the configuration of a further client. Indexed verbs: 1 name,
// 2 and 3 directories, 4 to 6 ports, 7 and 8 dynamic ports, 9 control group,
// 10 the server.
const clientConfig = `
name       = %[1]q
data_dir   = %[2]q
plugin_dir = %[3]q
bind_addr  = "127.0.0.1"
log_level  = "DEBUG"

disable_update_check = true
leave_on_terminate   = false
leave_on_interrupt   = false

ports {
  http = %[4]d
  rpc  = %[5]d
  serf = %[6]d
}
advertise {
  http = "127.0.0.1"
  rpc  = "127.0.0.1"
  serf = "127.0.0.1"
}

client {
  enabled           = true
  servers           = [%[10]q]
  network_interface = "lo"
  min_dynamic_port  = %[7]d
  max_dynamic_port  = %[8]d
  cgroup_parent     = %[9]q
  # Sizes that no test is limited by, whatever the machine.
  cpu_total_compute = 100000
  memory_total_mb   = 65536
  options = {
    "driver.allowlist"     = "raw_exec,egress"
    "fingerprint.denylist" = "bridge,cni,vault,env_aws,env_azure,env_gce,env_digitalocean"
  }
}

consul {
  auto_advertise   = false
  server_auto_join = false
  client_auto_join = false
}
`

// AddClient starts another client and waits until its node is ready and has the
// egress driver. It ends with the cluster.
func (c *Cluster) AddClient(ctx context.Context, name string) (*Client, error) {
	leader, err := c.Nomad.Client.Status().Leader()
	if err != nil {
		return nil, err
	}
	dir := filepath.Join(c.Dir, name)
	state := filepath.Join(dir, "state")
	for _, made := range []string{state, filepath.Join(dir, "plugins")} {
		if err := os.MkdirAll(made, 0o755); err != nil {
			return nil, err
		}
	}
	if err := copyProgram(c.config.PluginBin, filepath.Join(dir, "plugins", "egress")); err != nil {
		return nil, err
	}
	block, err := reservePorts()
	if err != nil {
		return nil, err
	}
	c.more = append(c.more, block)
	first, last := block.dynamic()
	text := fmt.Sprintf(clientConfig, name, filepath.Join(dir, "nomad"), filepath.Join(dir, "plugins"),
		block.next(), block.next(), block.next(), first, last, c.Name, leader)
	text += c.pluginConfig(name, c.Nomad.Address, state, "127.0.0.1:"+strconv.Itoa(block.next()))
	file := filepath.Join(dir, "nomad.hcl")
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		return nil, err
	}
	client := &Client{
		Name: name, StateDir: state, nomad: c.Nomad.Client,
		agent: agent{name: "nomad", bin: c.config.NomadBin, args: []string{"agent", "-config", file}, dir: dir, env: c.env()},
	}
	return client, client.Start(ctx)
}

// Start starts the agent, also again after Kill or Stop, and waits until its
// node is ready and its driver healthy.
func (n *Client) Start(ctx context.Context) error {
	if err := n.start(); err != nil {
		return err
	}
	return n.ready(ctx, "the node of client "+n.Name+" is ready", func(ctx context.Context) error {
		node, err := n.Node(ctx)
		switch {
		case err != nil:
			return err
		case node.Status != api.NodeStatusReady:
			return fmt.Errorf("node is %s", node.Status)
		case node.Drivers["egress"] == nil:
			return errors.New("node has no driver egress")
		case !node.Drivers["egress"].Healthy:
			return fmt.Errorf("driver egress: %s", node.Drivers["egress"].HealthDescription)
		}
		return nil
	})
}

// Node is the client's node, as the servers know it.
func (n *Client) Node(ctx context.Context) (*api.Node, error) {
	stubs, _, err := n.nomad.Nodes().List((&api.QueryOptions{}).WithContext(ctx))
	if err != nil {
		return nil, err
	}
	for _, stub := range stubs {
		if stub.Name == n.Name {
			node, _, err := n.nomad.Nodes().Info(stub.ID, (&api.QueryOptions{}).WithContext(ctx))
			return node, err
		}
	}
	return nil, fmt.Errorf("no node %s", n.Name)
}
