package cluster_test

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/egress-proxies/egress/e2e/cluster"
	"github.com/egress-proxies/egress/e2e/guard"
)

func TestMain(m *testing.M) {
	guard.Main()
	os.Exit(m.Run())
}

// job runs a process that needs no plugin.
func job() *api.Job {
	task := api.NewTask("sleep", "raw_exec").
		SetConfig("command", "/bin/sleep").SetConfig("args", []string{"1000"})
	return api.NewServiceJob("sleep", "sleep", "global", 50).
		AddTaskGroup(api.NewTaskGroup("sleep", 1).AddTask(task))
}

func TestStateSurvivesKillOfBothAgentsAndNothingIsLeft(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	config := cluster.Config{}
	if err := config.Servers(); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	c, err := cluster.Start(ctx, config)
	if err != nil {
		t.Fatal(err)
	}
	closed := false
	defer func() {
		if !closed {
			_ = c.Close()
		}
	}()
	t.Logf("started in %v", time.Since(began))
	if _, _, err := c.Nomad.Client.Jobs().Register(job(), nil); err != nil {
		t.Fatal(err)
	}
	running := func(ctx context.Context) error {
		allocs, _, err := c.Nomad.Client.Jobs().Allocations("sleep", true, (&api.QueryOptions{}).WithContext(ctx))
		if err != nil {
			return err
		}
		if len(allocs) != 1 || allocs[0].ClientStatus != api.AllocClientStatusRunning {
			return fmt.Errorf("allocations: %d", len(allocs))
		}
		return nil
	}
	if err := cluster.Until(ctx, "the job runs", running); err != nil {
		t.Fatal(err)
	}
	for _, agent := range []interface {
		Kill() error
		Start(context.Context) error
	}{c.Nomad, c.Consul} {
		if err := agent.Kill(); err != nil {
			t.Fatal(err)
		}
		began = time.Now()
		if err := agent.Start(ctx); err != nil {
			t.Fatal(err)
		}
		t.Logf("started again in %v", time.Since(began))
	}
	if err := cluster.Until(ctx, "the same job runs", running); err != nil {
		t.Fatal(err)
	}
	closed = true
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	checkGone(t, c)
}

// checkGone fails when anything of a closed cluster is still there.
func checkGone(t *testing.T, c *cluster.Cluster) {
	t.Helper()
	processes, err := guard.Processes(c.Dir)
	if err != nil || len(processes) > 0 {
		t.Errorf("processes left: %v, %v", processes, err)
	}
	mounts, err := guard.Mounts(c.Dir)
	if err != nil || len(mounts) > 0 {
		t.Errorf("mounts left: %v, %v", mounts, err)
	}
	if _, err := os.Stat(c.Dir); !os.IsNotExist(err) {
		t.Errorf("stat %s = %v, want it removed", c.Dir, err)
	}
}

func TestAFailedStartShowsTheAgentsLog(t *testing.T) {
	config := cluster.Config{}
	if err := config.Servers(); err != nil {
		t.Fatal(err)
	}
	config.NomadBin = "/bin/false"
	c, err := cluster.Start(t.Context(), config)
	if err == nil {
		_ = c.Close()
		t.Fatal("started without Nomad")
	}
	for _, want := range []string{"nomad exited", "consul.log", "cluster leadership acquired"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error lacks %q:\n%v", want, err)
		}
	}
}
