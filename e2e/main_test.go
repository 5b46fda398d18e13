// Package e2e_test runs the whole product against real Nomad and Consul agents,
// one behaviour a test. docs/testing.md says how to read a failure.
package e2e_test

import (
	"context"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/egress-proxies/egress/e2e/cluster"
	"github.com/egress-proxies/egress/e2e/guard"
)

// patience is how long a test waits for anything. It bounds a failing test and
// says nothing about speed: two cores may be shared with a build.
var patience = 90 * time.Second

func TestMain(m *testing.M) {
	guard.Main()
	if os.Getenv(insidePlugin) != "" {
		patience *= 3 // for guests that boot under emulation
	}
	os.Exit(run(m))
}

// run runs the tests; what they share ends here, or by its guard when the run
// is killed.
func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "egress-e2e-build-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	builds, err := guard.Start(dir, "")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	buildDir = dir
	code := m.Run()
	if common.cluster != nil {
		if err := checkBaseline(common.cluster); err != nil {
			fmt.Fprintln(os.Stderr, "after all tests:", err)
			code = 1
		}
		if err := common.cluster.Close(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	if err := builds.Close(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	return code
}

var buildDir string

// plugin builds the product once for all tests, with the race detector: a race
// found in any of them fails the cluster's Close.
var plugin = sync.OnceValues(func() (string, error) {
	return cluster.BuildPlugin(context.Background(), buildDir, true)
})

// common is the cluster of the tests that don't break agents.
var common struct {
	once    sync.Once
	cluster *cluster.Cluster
	err     error
}

// shared gives a test the common cluster. Such tests run side by side; each
// has a job and a Consul service of its own.
func shared(t *testing.T) *fixture {
	t.Helper()
	t.Parallel()
	common.once.Do(func() {
		common.cluster, common.err = startCluster(cluster.Config{
			PluginConfig: fmt.Sprintf("credentials_file = %q", credentialsFile()),
		})
	})
	if common.err != nil {
		t.Fatal(common.err)
	}
	return newFixture(t, common.cluster)
}

// own gives a test a cluster of its own, whose agents it may kill.
func own(t *testing.T, config cluster.Config) *fixture {
	t.Helper()
	t.Parallel()
	c, err := startCluster(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return newFixture(t, c)
}

func startCluster(config cluster.Config) (*cluster.Cluster, error) {
	if err := config.Servers(); err != nil {
		return nil, err
	}
	path, err := plugin()
	if err != nil {
		return nil, err
	}
	config.PluginBin = path
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	return cluster.Start(ctx, config)
}
