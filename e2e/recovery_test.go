package e2e_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"syscall"
	"testing"

	consul "github.com/hashicorp/consul/api"

	"github.com/egress-proxies/egress/e2e/cluster"
	"github.com/egress-proxies/egress/e2e/guard"
)

// pids are the processes of the registered proxies, by service id.
func (f *fixture) pids(entries []*consul.ServiceEntry) map[string]int {
	f.t.Helper()
	pids := map[string]int{}
	for _, entry := range entries {
		pids[entry.Service.ID] = f.listener(entry.Service.Port).PID
	}
	return pids
}

// killPlugin ends the plugin with kill -9 and waits for its successor.
func (f *fixture) killPlugin() {
	f.t.Helper()
	before, err := f.Nomad.PluginProcess()
	if err != nil {
		f.t.Fatal(err)
	}
	if err := before.Signal(syscall.SIGKILL); err != nil {
		f.t.Fatal(err)
	}
	f.until("another plugin runs", func(context.Context) error {
		after, err := f.Nomad.PluginProcess()
		if err == nil && after.PID == before.PID {
			err = fmt.Errorf("still %d", before.PID)
		}
		return err
	})
}

// restartNomad ends the agent with end, starts it again on the same data and
// waits until it is ready.
func (f *fixture) restartNomad(end func() error) {
	f.t.Helper()
	if err := end(); err != nil {
		f.t.Fatal(err)
	}
	if err := f.Nomad.Start(f.t.Context()); err != nil {
		f.t.Fatal(err)
	}
}

// sameAgain fails unless the very same proxies pass again, and go on working.
func (f *fixture) sameAgain(before map[string]int) {
	f.t.Helper()
	entries := f.passing(len(before))
	for id, pid := range f.pids(entries) {
		if before[id] != pid {
			f.t.Errorf("proxy %s is process %d, was %d", id, pid, before[id])
		}
	}
	f.works(proxyURL(entries[0]))
}

// crashComesBack kills one proxy: its task is still watched, and its config
// still known, after whatever came before.
func (f *fixture) crashComesBack(n int) {
	f.t.Helper()
	entry := f.passing(n)[0]
	before := f.listener(entry.Service.Port)
	if err := before.Signal(syscall.SIGKILL); err != nil {
		f.t.Fatal(err)
	}
	f.until("another process serves", func(ctx context.Context) error {
		entries, err := f.Consul.Passing(ctx, f.name)
		if err != nil {
			return err
		}
		for _, entry := range entries {
			processes, err := f.listeners(entry.Service.Port)
			if err != nil || len(processes) != 1 || processes[0].PID == before.PID {
				return fmt.Errorf("listeners %v, %v", processes, err)
			}
		}
		if len(entries) != n {
			return fmt.Errorf("%d passing", len(entries))
		}
		return nil
	})
}

func TestProxiesOutliveAgentAndPlugin(t *testing.T) {
	f := own(t, cluster.Config{})
	f.fleet(map[string]string{"count": "3"})
	before := f.pids(f.passing(3))
	for _, step := range []struct {
		name string
		do   func()
	}{
		{"plugin killed", f.killPlugin},
		{"agent stopped", func() { f.restartNomad(f.Nomad.Stop) }},
		{"agent killed", func() { f.restartNomad(f.Nomad.Kill) }},
		{"agent and plugin killed", func() {
			plugin, err := f.Nomad.PluginProcess()
			if err != nil {
				t.Fatal(err)
			}
			f.restartNomad(func() error {
				if err := f.Nomad.Kill(); err != nil {
					return err
				}
				return plugin.Signal(syscall.SIGKILL)
			})
		}},
	} {
		t.Log(step.name)
		step.do()
		f.sameAgain(before)
		if t.Failed() {
			t.FailNow()
		}
	}
	// Case 5: the config is complete, not EOF.
	f.crashComesBack(3)
	f.stop(f.name)
}

// startHeld begins the start of one proxy whose probe is held back, and returns
// when the probe has arrived at the origin.
func (f *fixture) startHeld(startTimeout string) {
	f.t.Helper()
	gate := f.name
	arrived := f.Origin.Hold(gate)
	f.t.Cleanup(func() { f.Origin.Release(gate) })
	f.fleet(map[string]string{
		"count":         "1",
		"probe_urls":    `["` + f.Origin.HTTP + `/gate/` + gate + `"]`,
		"start_timeout": startTimeout,
	})
	select {
	case <-arrived:
	case <-f.t.Context().Done():
		f.t.Fatal("the test ends before the probe came")
	}
}

// one fails until exactly one instance is there and passes; that of alloc.
func (f *fixture) one(alloc string) {
	f.t.Helper()
	f.Origin.Release(f.name)
	entry := f.passing(1)[0]
	if want := "egress-" + f.instance(alloc); entry.Service.ID != want {
		f.t.Errorf("service %s, want that of the same allocation, %s", entry.Service.ID, want)
	}
	f.works(proxyURL(entry))
	f.until("one instance is left", func(context.Context) error {
		listeners, err := f.listeners(entry.Service.Port)
		if err != nil {
			return err
		}
		names := map[string]bool{}
		processes, err := guard.Processes(f.Dir)
		for _, p := range processes {
			for _, arg := range append(p.Args, p.Dir) {
				if i := strings.Index(arg, "eg-"); i >= 0 {
					names[strings.SplitN(arg[i:], "/", 2)[0]] = true
				}
			}
		}
		if len(listeners) != 1 || len(names) > 1 {
			return fmt.Errorf("listeners %v, instances %v", listeners, names)
		}
		return err
	})
}

// TestPluginKilledMidStart is case 2: the same instance is adopted.
func TestPluginKilledMidStart(t *testing.T) {
	f := own(t, cluster.Config{})
	f.startHeld("60s")
	alloc := f.allocs(f.name)[0].ID
	f.killPlugin()
	f.one(alloc)
}

// TestAgentKilledMidStart is case 1: one instance in the end, the old one gone.
func TestAgentKilledMidStart(t *testing.T) {
	f := own(t, cluster.Config{})
	f.startHeld("60s")
	alloc := f.allocs(f.name)[0].ID
	f.restartNomad(f.Nomad.Kill)
	f.one(alloc)
}

// TestJobStoppedMidStart is case 3: nothing is left, which stop looks for.
func TestJobStoppedMidStart(t *testing.T) {
	f := shared(t)
	// Nomad lets a start end before it stops a task.
	f.startHeld("5s")
	f.stop(f.name)
	if entries, err := f.Consul.Services(t.Context(), f.name); err != nil || len(entries) > 0 {
		t.Errorf("registered after the stop: %v, %v", entries, err)
	}
}

// TestAlwaysTenAgain kills a proxy, the plugin and the agent under a fleet of
// ten and under one another; `make e2e-full` goes on at random.
func TestAlwaysTenAgain(t *testing.T) {
	f := own(t, cluster.Config{})
	f.fleet(map[string]string{"count": "10", "restart_attempts": "100"})
	entries := f.passing(10)
	killProxy := func(i int) {
		if err := f.listener(entries[i].Service.Port).Signal(syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
	killAgent := func(meanwhile func()) {
		f.restartNomad(func() error {
			err := f.Nomad.Kill()
			meanwhile()
			return err
		})
	}
	steps := []struct {
		name string
		do   func(proxy int)
	}{
		{"a proxy", killProxy},
		{"a proxy, then the plugin before it is seen", func(i int) { killProxy(i); f.killPlugin() }},
		{"the plugin, then a proxy", func(i int) { f.killPlugin(); killProxy(i) }},
		{"the agent, with a proxy that dies meanwhile", func(i int) { killAgent(func() { killProxy(i) }) }},
		{"the agent and the plugin", func(int) {
			plugin, err := f.Nomad.PluginProcess()
			if err != nil {
				t.Fatal(err)
			}
			killAgent(func() { _ = plugin.Signal(syscall.SIGKILL) })
		}},
	}
	again := func(name string) {
		t.Log("killed: " + name)
		entries = f.exactly(10)
	}
	for i, step := range steps {
		step.do(i)
		again(step.name)
	}
	if os.Getenv("EGRESS_E2E_FULL") != "" {
		for range 40 {
			step := steps[rand.IntN(len(steps))]
			step.do(rand.IntN(len(entries)))
			again(step.name)
		}
	}
	for _, entry := range entries {
		f.works(proxyURL(entry))
	}
	f.stop(f.name)
	if err := checkBaseline(f.Cluster); err != nil {
		t.Error(err)
	}
}

// exactly waits until n proxies are registered, pass, and are one process each.
func (f *fixture) exactly(n int) (entries []*consul.ServiceEntry) {
	f.t.Helper()
	f.until(fmt.Sprintf("%d proxies work", n), func(ctx context.Context) (err error) {
		entries, err = f.Consul.Services(ctx, f.name)
		if err != nil || len(entries) != n {
			return errNotYet(len(entries), err)
		}
		for _, entry := range entries {
			if status := entry.Checks.AggregatedStatus(); status != consul.HealthPassing {
				return fmt.Errorf("%s is %s", entry.Service.ID, status)
			}
			if listeners, err := f.listeners(entry.Service.Port); err != nil || len(listeners) != 1 {
				return fmt.Errorf("%s: listeners %v, %v", entry.Service.ID, listeners, err)
			}
		}
		return nil
	})
	return entries
}
