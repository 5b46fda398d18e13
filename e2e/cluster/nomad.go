package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/hashicorp/nomad/api"

	"github.com/egress-proxies/egress/e2e/guard"
)

// Nomad is the Nomad agent: a server and a client in one.
type Nomad struct {
	agent
	// Client talks to it.
	Client *api.Client
	// Address is the root of its HTTP API.
	Address string
	// Metrics is where the plugin serves its own.
	Metrics string

	plugin string
}

// nomadConfig is the agent's configuration. Indexed verbs: 1 data directory,
// 2 plugin directory, 3 to 5 ports, 6 and 7 dynamic ports, 8 control group,
// 9 Consul's address.
const nomadConfig = `
name       = "e2e"
data_dir   = %[1]q
plugin_dir = %[2]q
bind_addr  = "127.0.0.1"
log_level  = "DEBUG"

disable_update_check = true
leave_on_terminate   = false
leave_on_interrupt   = false

ports {
  http = %[3]d
  rpc  = %[4]d
  serf = %[5]d
}
advertise {
  http = "127.0.0.1"
  rpc  = "127.0.0.1"
  serf = "127.0.0.1"
}

server {
  enabled          = true
  bootstrap_expect = 1
  raft_multiplier  = 1
}

client {
  enabled           = true
  network_interface = "lo"
  min_dynamic_port  = %[6]d
  max_dynamic_port  = %[7]d
  cgroup_parent     = %[8]q
  # Sizes that no test is limited by, whatever the machine.
  cpu_total_compute = 100000
  memory_total_mb   = 65536
  options = {
    "driver.allowlist"     = "raw_exec,egress"
    "fingerprint.denylist" = "bridge,cni,vault,env_aws,env_azure,env_gce,env_digitalocean"
  }
}

consul {
  address          = %[9]q
  auto_advertise   = false
  server_auto_join = false
  client_auto_join = false
}

plugin "raw_exec" {
  config {
    enabled = true
  }
}

telemetry {
  prometheus_metrics = true
}
`

func newNomad(c *Cluster) (*Nomad, error) {
	http := c.ports.next()
	address := "http://127.0.0.1:" + strconv.Itoa(http)
	first, last := c.ports.dynamic()
	text := fmt.Sprintf(nomadConfig, filepath.Join(c.Dir, "nomad"), filepath.Join(c.Dir, "plugins"),
		http, c.ports.next(), c.ports.next(), first, last, c.Name, c.Consul.Address)
	metrics := "127.0.0.1:" + strconv.Itoa(c.ports.next())
	if c.Plugin != "" {
		text += c.pluginConfig("e2e", address, c.StateDir, metrics)
	}
	file := filepath.Join(c.Dir, "nomad.hcl")
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		return nil, err
	}
	client, err := api.NewClient(&api.Config{Address: address})
	if err != nil {
		return nil, err
	}
	return &Nomad{
		agent: agent{
			name: "nomad",
			bin:  c.config.NomadBin,
			args: []string{"agent", "-config", file},
			dir:  c.Dir,
			env:  c.env(),
		},
		Client:  client,
		Address: address,
		Metrics: "http://" + metrics + "/metrics",
		plugin:  c.Plugin,
	}, nil
}

// pluginConfig is the plugin block of a node's agent's configuration.
func (c *Cluster) pluginConfig(node, nomad, stateDir, metrics string) string {
	probe := c.config.Probe
	if probe == "" {
		probe = fmt.Sprintf(`
      urls        = [%q, %q]
      interval    = "1s"
      timeout     = "5s"
      failures    = 2
      exit_ip_url = %q`, c.Origin.HTTP+"/", c.Origin.HTTPS+"/", c.Origin.HTTP+"/ip")
	}
	providers := `
    provider "local" {
      type          = "process"
      allow_clients = ["127.0.0.0/8", "::1/128"]
      allow_targets = ["127.0.0.0/8", "::1/128"]
    }
    provider "bought" {
      type = "external"
    }`
	if c.config.NoProviders {
		providers = ""
	}
	serveMetrics := fmt.Sprintf("metrics {\n      address = %q\n    }", metrics)
	if strings.Contains(c.config.PluginConfig, "metrics {") {
		serveMetrics = "" // The test's own business.
	}
	return fmt.Sprintf(`
plugin "egress" {
  config {
    cluster   = %q
    state_dir = %q
    consul {
      address          = %q
      deregister_after = "1m"
    }
    nomad {
      address = %q
    }
    %s
    probe {
      ca_file = %q
      %s
    }
    %s
    %s
  }
}
`, c.Name, stateDir, c.Consul.Address, nomad, serveMetrics, c.Origin.CAFile, probe, providers,
		strings.ReplaceAll(c.config.PluginConfig, NodeName, node))
}

// Start starts the agent, also again after Kill or Stop, and waits until its
// node is ready and has the egress driver.
func (n *Nomad) Start(ctx context.Context) error {
	if err := n.start(); err != nil {
		return err
	}
	return n.ready(ctx, "the Nomad node is ready", func(ctx context.Context) error {
		node, err := n.Node(ctx)
		switch {
		case err != nil:
			return err
		case node.Status != api.NodeStatusReady:
			return fmt.Errorf("node is %s", node.Status)
		case n.plugin == "":
			return nil
		case node.Drivers["egress"] == nil:
			return errors.New("node has no driver egress")
		case !node.Drivers["egress"].Healthy:
			return fmt.Errorf("driver egress: %s", node.Drivers["egress"].HealthDescription)
		}
		return nil
	})
}

// Node is the one node.
func (n *Nomad) Node(ctx context.Context) (*api.Node, error) {
	stubs, _, err := n.Client.Nodes().List((&api.QueryOptions{}).WithContext(ctx))
	if err != nil {
		return nil, err
	}
	if len(stubs) != 1 {
		return nil, fmt.Errorf("%d nodes, want one", len(stubs))
	}
	node, _, err := n.Client.Nodes().Info(stubs[0].ID, (&api.QueryOptions{}).WithContext(ctx))
	return node, err
}

// PluginProcess is the running plugin: the agent's child, or the process that a
// killed agent has left behind and that the next one takes over.
func (n *Nomad) PluginProcess() (guard.Process, error) {
	all, err := guard.All()
	if err != nil {
		return guard.Process{}, err
	}
	for _, p := range all {
		// A plugin has no arguments; proxies of the same program have some.
		if p.Exe == n.plugin && len(p.Args) == 1 && p.State != "Z" {
			return p, nil
		}
	}
	return guard.Process{}, errors.New("the plugin isn't running")
}
