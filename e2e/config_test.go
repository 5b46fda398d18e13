package e2e_test

import (
	"context"
	"testing"

	nomad "github.com/hashicorp/nomad/api"
)

// proxyJob is a job of one proxy task with the given config, which is never
// restarted: what is wrong with it stays visible.
func (f *fixture) proxyJob(id string, config map[string]any) *nomad.Job {
	task := nomad.NewTask("proxy", "egress").Require(&nomad.Resources{CPU: ptr(50), MemoryMB: ptr(64)})
	task.Config = config
	group := nomad.NewTaskGroup("proxy", 1).AddTask(task)
	group.Networks = []*nomad.NetworkResource{{DynamicPorts: []nomad.Port{{Label: "proxy"}}}}
	group.RestartPolicy = &nomad.RestartPolicy{Attempts: ptr(0), Mode: ptr("fail")}
	group.ReschedulePolicy = &nomad.ReschedulePolicy{Attempts: ptr(0), Unlimited: ptr(false)}
	group.Update = &nomad.UpdateStrategy{HealthCheck: ptr("task_states")}
	job := nomad.NewServiceJob(id, id, "global", 50).AddTaskGroup(group)
	job.Datacenters = []string{"*"}
	return job
}

func ptr[T any](value T) *T { return &value }

// TestWrongConfigIsToldWhereAUserLooks: the message in `nomad alloc status`
// names the key, the value and what is expected.
func TestWrongConfigIsToldWhereAUserLooks(t *testing.T) {
	f := shared(t)
	good := func(key string, value any) map[string]any {
		config := map[string]any{"provider": "local", "port": "proxy", key: value}
		return config
	}
	for name, test := range map[string]struct {
		config map[string]any
		says   []string
	}{
		"unknown-key":      {good("prot", "proxy"), []string{"prot"}},
		"wrong-type":       {good("args", map[string]any{"a": "b"}), []string{"args"}},
		"unknown-provider": {good("provider", "loca"), []string{"loca", "local", "bought"}},
		"unknown-port":     {good("port", "prxy"), []string{"prxy", "proxy"}},
		"bad-duration":     {good("drain", "5"), []string{"drain", `"5"`}},
		"negative-leases":  {good("max_leases", -1), []string{"max_leases", "-1"}},
		"bad-probe-url":    {good("probe", []map[string]any{{"urls": []string{"ftp://x"}}}), []string{"probe", "ftp://x", "http"}},
		"unknown-auth":     {good("auth", []map[string]any{{"name": "crwl"}}), []string{"crwl"}},
		"reserved-meta":    {good("attributes", map[string]any{"exit_ip": "1.2.3.4"}), []string{"attributes", "exit_ip"}},
		"missing-endpoint": {map[string]any{"provider": "bought"}, []string{"endpoint"}},
		"no-user-data":     {good("user_data_file", "local/none"), []string{"user_data_file", "local/none"}},
	} {
		t.Run(name, func(t *testing.T) {
			id := f.name + "-" + name
			f.submit(f.proxyJob(id, test.config))
			f.event(id, test.says...)
		})
	}
}

// TestProxyThatNeverWorksStaysBounded is case 31: the reason is visible, and
// the attempts grow neither in number nor in what they leave.
func TestProxyThatNeverWorksStaysBounded(t *testing.T) {
	f := shared(t)
	// The page answers, but not as a working proxy's would.
	f.fleet(map[string]string{
		"count":         "2",
		"probe_urls":    `["` + f.Origin.HTTP + `/status/503"]`,
		"start_timeout": "2s",
		"restart_delay": "1s",
	})
	f.event(f.name, "http", "503")
	f.until("Nomad gives up for now", func(ctx context.Context) error {
		allocs := f.allocs(f.name)
		for _, alloc := range allocs {
			if alloc.ClientStatus == nomad.AllocClientStatusFailed {
				return nil
			}
		}
		return errNotYet(len(allocs), nil)
	})
	live := 0
	for _, alloc := range f.allocs(f.name) {
		if !terminal(alloc) {
			live++
		}
	}
	if live > 2 {
		t.Errorf("%d allocations at once, want at most the count", live)
	}
	if entries, err := f.Consul.Passing(t.Context(), f.name); err != nil || len(entries) > 0 {
		t.Errorf("passing: %v, %v", entries, err)
	}
}
