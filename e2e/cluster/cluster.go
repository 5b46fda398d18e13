// Package cluster runs a real Consul and a real Nomad agent with the egress
// plugin, apart from everything else on the machine: own ports, own data, own
// scratch directory, and a guard that ends all of it.
package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/egress-proxies/egress/e2e/guard"
	"github.com/egress-proxies/egress/e2e/origin"
)

// Config says what to start. The zero value of each field but the programs is
// usable.
type Config struct {
	// NomadBin, ConsulBin and PluginBin are the programs to run.
	NomadBin, ConsulBin, PluginBin string
	// PluginConfig is HCL that is appended to the plugin's configuration; NodeName
	// in it stands for the name of the node.
	PluginConfig string
	// Probe is HCL inside the plugin's probe block. Empty: the origin's pages
	// over http and https, once a second.
	Probe string
	// NoProviders leaves out the two providers "local" and "bought".
	NoProviders bool
}

// NodeName in Config.PluginConfig is replaced by the name of each node, so that
// nodes differ: the first one's is e2e.
const NodeName = "<node>"

// Cluster is a running pair of agents, whose state survives their restart, and the origin that its proxies are
// probed against.
type Cluster struct {
	// Dir is the scratch directory; all that belongs to the cluster is in it.
	Dir string
	// Name is the id of the installation, as instances are labelled with it.
	Name string
	// StateDir is where the plugin keeps its state.
	StateDir string
	// Plugin is the plugin's executable, a copy that nobody else runs.
	Plugin string
	// Nomad and Consul are the agents.
	Nomad  *Nomad
	Consul *Consul
	// Origin is the site that proxies are probed against.
	Origin *origin.Origin

	config Config
	ports  *ports
	more   []*ports // of further clients
	guard  *guard.Guard
}

// Start starts everything and waits until the node is ready and, when there is
// a plugin, its driver healthy. On error all of it is ended and the error holds
// the end of the agents' logs.
func Start(ctx context.Context, config Config) (_ *Cluster, err error) {
	c := &Cluster{config: config}
	if c.Dir, err = os.MkdirTemp("", "egress-e2e-"); err != nil {
		return nil, err
	}
	c.Name = filepath.Base(c.Dir)
	c.StateDir = filepath.Join(c.Dir, "state")
	if c.guard, err = guard.Start(c.Dir, c.Name); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			var dump strings.Builder
			c.Dump(context.WithoutCancel(ctx), &dump)
			err = errors.Join(fmt.Errorf("%w\n%s", err, dump.String()), c.Close())
		}
	}()
	if err = c.prepare(); err != nil {
		return nil, err
	}
	if err = c.Consul.Start(ctx); err != nil {
		return nil, err
	}
	if err = c.Nomad.Start(ctx); err != nil {
		return nil, err
	}
	return c, nil
}

// prepare lays out the scratch directory and the agents' configuration.
func (c *Cluster) prepare() (err error) {
	for _, dir := range []string{"plugins", "tmp", "state"} {
		if err := os.Mkdir(filepath.Join(c.Dir, dir), 0o755); err != nil {
			return err
		}
	}
	if c.ports, err = reservePorts(); err != nil {
		return err
	}
	if c.Origin, err = origin.Start(c.Dir); err != nil {
		return err
	}
	if c.config.PluginBin != "" {
		c.Plugin = filepath.Join(c.Dir, "plugins", "egress")
		if err := copyProgram(c.config.PluginBin, c.Plugin); err != nil {
			return err
		}
	}
	if c.Consul, err = newConsul(c); err != nil {
		return err
	}
	c.Nomad, err = newNomad(c)
	return err
}

// Close ends everything, and fails when the plugin's race detector has found
// something.
func (c *Cluster) Close() error {
	races := c.races()
	err := c.guard.Close()
	if c.Origin != nil {
		err = errors.Join(err, c.Origin.Close())
	}
	if c.ports != nil {
		err = errors.Join(err, c.ports.Close())
	}
	for _, block := range c.more {
		err = errors.Join(err, block.Close())
	}
	if races != "" {
		err = errors.Join(err, errors.New(races))
	}
	return err
}

// races is what the race detector wrote about the plugin and its children.
func (c *Cluster) races() string {
	files, _ := filepath.Glob(filepath.Join(c.Dir, "race.*"))
	var all strings.Builder
	for _, file := range files {
		text, _ := os.ReadFile(file)
		all.Write(text)
	}
	return all.String()
}

// env is the environment of the agents. The run's own is not passed on: a
// HTTP_PROXY or NOMAD_TOKEN of the person at the keyboard is not for them.
func (c *Cluster) env() []string {
	return []string{
		"PATH=" + os.Getenv("PATH"),
		"HOME=" + c.Dir,
		"TMPDIR=" + filepath.Join(c.Dir, "tmp"),
		// Without the second that a race-detecting program sleeps at its end.
		"GORACE=atexit_sleep_ms=0 log_path=" + filepath.Join(c.Dir, "race"),
	}
}

// Leftovers are the processes of the cluster that are neither the agents nor
// the running plugin: the proxies, and what should not be there.
func (c *Cluster) Leftovers() ([]guard.Process, error) {
	processes, err := guard.Processes(c.Dir)
	if err != nil {
		return nil, err
	}
	plugin, _ := c.Nomad.PluginProcess()
	var left []guard.Process
	for _, p := range processes {
		if p.PID != c.Nomad.PID() && p.PID != c.Consul.PID() && p.PID != plugin.PID {
			left = append(left, p)
		}
	}
	return left, nil
}

// Until waits until condition gives nil. It asks often, because the agents have
// no one thing to wait for that would cover what tests ask; when ctx ends the
// error holds the condition's last one.
func Until(ctx context.Context, what string, condition func(context.Context) error) error {
	const pause = 50 * time.Millisecond
	ticker := time.NewTicker(pause)
	defer ticker.Stop()
	var last error
	for {
		err := condition(ctx)
		if err == nil {
			return nil
		}
		if last == nil || ctx.Err() == nil { // Not that it was interrupted.
			last = err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait until %s: %w; last: %w", what, context.Cause(ctx), last)
		case <-ticker.C:
		}
	}
}

// copyProgram copies an executable; a hard link serves where it can, since the
// path is what tells the copies apart.
func copyProgram(from, to string) error {
	if os.Link(from, to) == nil {
		return nil
	}
	data, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, data, 0o755)
}
