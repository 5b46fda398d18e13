// Command demo runs Consul, Nomad, a fleet of proxies and the lease service on
// this machine, and shows a person around. `make demo` starts it; `make dev`
// does without the tour.
//
// Everything stays on loopback and in a scratch directory, and ends with the
// demo. DEMO_EXIT=1 ends it after the tour instead of at Ctrl-C.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"time"

	"github.com/egress-proxies/egress/e2e/cluster"
	"github.com/egress-proxies/egress/e2e/guard"
)

func main() {
	guard.Main()
	tour := flag.Bool("tour", true, "show how it is used, step by step")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := run(ctx, *tour)
	switch {
	case ctx.Err() != nil && errors.Is(err, context.Canceled):
		fmt.Println("\nInterrupted; everything is cleaned up.")
	case err != nil:
		fmt.Fprintln(os.Stderr, "\ndemo:", err)
		os.Exit(1)
	}
}

// run starts everything, shows it, and ends it.
func run(ctx context.Context, tour bool) (err error) {
	began := time.Now()
	config, err := programs(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, config.builds.Close()) }()
	say("Starting Consul and Nomad with the egress plugin.")
	c, err := cluster.Start(ctx, config.Config)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close()) }()

	d := &demo{Cluster: c, nomadBin: config.NomadBin, egressBin: config.PluginBin}
	if err := d.deploy(ctx); err != nil {
		return err
	}
	if tour {
		if err := d.tour(ctx); err != nil {
			return err
		}
	}
	d.addresses(time.Since(began))
	if os.Getenv("DEMO_EXIT") != "" {
		return nil
	}
	fmt.Println("\nAll of it runs on. Ctrl-C ends and removes it.")
	<-ctx.Done()
	fmt.Println("\nCleaning up.")
	return nil
}

// built is a cluster's configuration, and what its program lives in.
type built struct {
	cluster.Config
	builds *guard.Guard
}

// programs finds the two servers, those on PATH first, and builds the plugin.
func programs(ctx context.Context) (built, error) {
	var b built
	for _, server := range []struct {
		name, variable string
		path           *string
	}{
		{"nomad", "EGRESS_NOMAD_BIN", &b.NomadBin},
		{"consul", "EGRESS_CONSUL_BIN", &b.ConsulBin},
	} {
		if path, err := exec.LookPath(server.name); err == nil {
			*server.path = path
			fmt.Printf("Using the %s on PATH: %s\n", server.name, path)
			continue
		}
		path, err := cluster.Server(server.name, server.variable)
		if err != nil {
			return b, err
		}
		*server.path = path
		fmt.Printf("No %s on PATH; using the one that `make servers` has built: %s\n", server.name, path)
	}
	dir, err := os.MkdirTemp("", "egress-demo-")
	if err != nil {
		return b, err
	}
	if b.builds, err = guard.Start(dir, ""); err != nil {
		return b, err
	}
	say("Building the plugin.")
	if b.PluginBin, err = cluster.BuildPlugin(ctx, dir, false); err != nil {
		return b, errors.Join(err, b.builds.Close())
	}
	return b, nil
}

// say is a line between the commands.
func say(text string) { fmt.Printf("\n# %s\n", text) }
