package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	consul "github.com/hashicorp/consul/api"
	nomad "github.com/hashicorp/nomad/api"

	"github.com/egress-proxies/egress/e2e/cluster"
	"github.com/egress-proxies/egress/e2e/guard"
	"github.com/egress-proxies/egress/jobs"
	"github.com/egress-proxies/egress/provider"
)

// fixture is what a test works with: a cluster, and the job and the service
// that are the test's own.
type fixture struct {
	*cluster.Cluster
	t *testing.T
	// name is the id of the test's job and the name of its Consul service.
	name string
	// ended are the jobs that the test has stopped itself.
	ended map[string]bool
	// dumped is true once a failure has been explained.
	dumped bool
}

var notName = regexp.MustCompile(`[^a-z0-9]+`)

func newFixture(t *testing.T, c *cluster.Cluster) *fixture {
	t.Helper()
	name := notName.ReplaceAllString(strings.ToLower(strings.TrimPrefix(t.Name(), "Test")), "-")
	f := &fixture{Cluster: c, t: t, name: name[:min(len(name), 60)], ended: map[string]bool{}}
	t.Cleanup(f.explain)
	return f
}

// explain shows the state of the cluster once the test has failed; before the
// clean-up has changed it.
func (f *fixture) explain() {
	if !f.t.Failed() || f.dumped {
		return
	}
	f.dumped = true
	var dump strings.Builder
	f.Dump(context.Background(), &dump)
	f.t.Log(dump.String())
}

// until waits until condition gives nil and fails the test after patience.
func (f *fixture) until(what string, condition func(context.Context) error) {
	f.t.Helper()
	// Not the test's context: clean-ups wait too.
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := cluster.Until(ctx, what, condition); err != nil {
		f.t.Fatal(err)
	}
}

// fleet starts a fleet of process proxies from the jobspec that the product
// comes with. The job is stopped and its traces are looked for at the end.
func (f *fixture) fleet(variables map[string]string) {
	f.t.Helper()
	f.load("process", f.name, variables)
}

// load submits an embedded jobspec as the job id.
func (f *fixture) load(spec, id string, variables map[string]string) {
	f.t.Helper()
	all := map[string]string{"name": id, "service": f.name}
	for key, value := range variables {
		all[key] = value
	}
	job, err := jobs.Load(f.t.Context(), f.Nomad.Client, spec, all)
	if err != nil {
		f.t.Fatal(err)
	}
	f.submit(job)
}

// submit registers a job, which is stopped and whose traces are looked for at
// the end of the test.
func (f *fixture) submit(job *nomad.Job) {
	f.t.Helper()
	if _, err := jobs.Submit(f.t.Context(), f.Nomad.Client, job); err != nil {
		f.t.Fatal(err)
	}
	id := *job.ID
	if _, known := f.ended[id]; !known {
		f.ended[id] = false
		f.t.Cleanup(func() { f.explain(); f.stop(id) })
	}
}

// stop stops a job and waits until all of it is gone: allocations, processes,
// state, registrations.
func (f *fixture) stop(id string) {
	f.t.Helper()
	if f.ended[id] {
		return
	}
	f.ended[id] = true
	allocs := f.allocs(id)
	if _, _, err := f.Nomad.Client.Jobs().Deregister(id, false, nil); err != nil {
		f.t.Fatal(err)
	}
	f.until("job "+id+" is stopped", func(ctx context.Context) error {
		for _, alloc := range f.allocs(id) {
			if !terminal(alloc) {
				return fmt.Errorf("alloc %s is %s", alloc.ID, alloc.ClientStatus)
			}
		}
		return nil
	})
	f.until("nothing is left of job "+id, func(ctx context.Context) error {
		var problems []error
		for _, alloc := range allocs {
			problems = append(problems, f.traces(ctx, alloc.ID))
		}
		return errors.Join(problems...)
	})
}

// traces fails while anything of an allocation's instance is there.
func (f *fixture) traces(ctx context.Context, alloc string) error {
	name := f.instance(alloc)
	processes, err := guard.Processes(f.Dir)
	if err != nil {
		return err
	}
	for _, p := range processes {
		if strings.Contains(strings.Join(append(p.Args, p.Dir), " "), name) {
			return fmt.Errorf("process %s", p)
		}
	}
	for _, pattern := range []string{"*", "*/*", "*/*/*"} {
		files, err := filepath.Glob(filepath.Join(f.StateDir, pattern))
		if err != nil {
			return err
		}
		for _, file := range files {
			if strings.Contains(filepath.Base(file), name) {
				return fmt.Errorf("file %s", file)
			}
		}
	}
	services, err := f.Consul.Client.Agent().ServicesWithFilterOpts("", (&consul.QueryOptions{}).WithContext(ctx))
	if err != nil {
		return err
	}
	if services["egress-"+name] != nil {
		return fmt.Errorf("service egress-%s", name)
	}
	return nil
}

// instance is the name of the instance of an allocation's one task.
func (f *fixture) instance(alloc string) string {
	return provider.Name(f.Name, alloc, "proxy")
}

// allocs are all allocations of a job, the newest first.
func (f *fixture) allocs(id string) []*nomad.AllocationListStub {
	f.t.Helper()
	allocs, _, err := f.Nomad.Client.Jobs().Allocations(id, true, nil)
	if err != nil {
		f.t.Fatal(err)
	}
	return allocs
}

// running waits until exactly n allocations of a job run and shall run, and
// gives them: the server hears of it a moment after Consul does.
func (f *fixture) running(id string, n int) []*nomad.AllocationListStub {
	f.t.Helper()
	var running []*nomad.AllocationListStub
	f.until(fmt.Sprintf("%d allocations of %s run", n, id), func(context.Context) error {
		running = nil
		for _, alloc := range f.allocs(id) {
			if alloc.ClientStatus == nomad.AllocClientStatusRunning && alloc.DesiredStatus == nomad.AllocDesiredStatusRun {
				running = append(running, alloc)
			}
		}
		if len(running) != n {
			return errNotYet(len(running), nil)
		}
		return nil
	})
	return running
}

func terminal(alloc *nomad.AllocationListStub) bool {
	switch alloc.ClientStatus {
	case nomad.AllocClientStatusComplete, nomad.AllocClientStatusFailed, nomad.AllocClientStatusLost:
		return true
	}
	return false
}

// passing waits until exactly n proxies of the test's service are registered,
// all pass, and gives them.
func (f *fixture) passing(n int) []*consul.ServiceEntry {
	f.t.Helper()
	var entries []*consul.ServiceEntry
	f.until(fmt.Sprintf("%d proxies pass", n), func(ctx context.Context) (err error) {
		entries, err = f.Consul.Services(ctx, f.name)
		if err != nil {
			return err
		}
		passing := 0
		for _, entry := range entries {
			if entry.Checks.AggregatedStatus() == consul.HealthPassing {
				passing++
			}
		}
		if passing != n || len(entries) != n {
			return fmt.Errorf("%d registered, %d passing", len(entries), passing)
		}
		return nil
	})
	return entries
}

// event waits until an allocation of the job has a task event whose message
// holds all of the texts, as a person sees it in `nomad alloc status`.
func (f *fixture) event(id string, texts ...string) {
	f.t.Helper()
	f.until(fmt.Sprintf("a task event says %q", texts), func(context.Context) error {
		var all []string
		for _, alloc := range f.allocs(id) {
			for _, state := range alloc.TaskStates {
				for _, event := range state.Events {
					line := event.Type + ": " + event.DisplayMessage
					if !slices.ContainsFunc(texts, func(text string) bool { return !strings.Contains(line, text) }) {
						return nil
					}
					all = append(all, line)
				}
			}
		}
		return fmt.Errorf("events:\n%s", strings.Join(all, "\n"))
	})
}

// checkBaseline fails when a cluster whose jobs are all stopped still has
// processes, state or registrations.
func checkBaseline(c *cluster.Cluster) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return cluster.Until(ctx, "the cluster is at its baseline", func(ctx context.Context) error {
		left, err := c.Leftovers()
		if err != nil {
			return err
		}
		if len(left) > 0 {
			return fmt.Errorf("processes left: %v", left)
		}
		services, err := c.Consul.Client.Agent().ServicesWithFilterOpts("", (&consul.QueryOptions{}).WithContext(ctx))
		if err != nil {
			return err
		}
		// The providers' targets are registered as long as the plugin runs.
		maps.DeleteFunc(services, func(_ string, s *consul.AgentService) bool { return s.Service == "egress-target" })
		if len(services) > 0 {
			return fmt.Errorf("services left: %v", slices.Sorted(maps.Keys(services)))
		}
		return nil
	})
}
