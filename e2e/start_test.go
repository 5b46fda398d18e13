package e2e_test

import (
	"context"
	"fmt"
	"net/url"
	"strings"
	"syscall"
	"testing"

	"github.com/egress-proxies/egress/e2e/guard"
	"github.com/egress-proxies/egress/jobs"
)

// worksURL is works for a URL as the lease service gives it.
func (f *fixture) worksURL(proxy string) {
	f.t.Helper()
	parsed, err := url.Parse(proxy)
	if err != nil {
		f.t.Fatal(err)
	}
	f.works(parsed)
}

func TestEveryJobspecIsParsedByTheAgent(t *testing.T) {
	f := shared(t)
	required := map[string]map[string]string{
		"external": {"endpoints": `{ a = { host = "p1.example", port = 3128 } }`},
	}
	for _, name := range jobs.Names() {
		t.Run(name, func(t *testing.T) {
			variables := map[string]string{"name": "some-" + name}
			for key, value := range required[name] {
				variables[key] = value
			}
			job, err := jobs.Load(t.Context(), f.Nomad.Client, name, variables)
			if err != nil {
				t.Fatal(err)
			}
			if *job.ID != "some-"+name {
				t.Errorf("id = %q, want what the variable says", *job.ID)
			}
			// The driver's own part is checked when a task starts; this is all
			// that the server can tell.
			answer, _, err := f.Nomad.Client.Jobs().Validate(job, nil)
			if err != nil || answer.Error != "" {
				t.Errorf("validate: %v, %s", err, answer.Error)
			}
		})
	}
}

func TestStartIsRegisteredWithEverythingCrawlersSelectBy(t *testing.T) {
	f := shared(t)
	f.fleet(map[string]string{
		"count":      "1",
		"attributes": `{ country = "DE" }`,
		"tags":       `["fast"]`,
		"max_leases": "7",
	})
	entry := f.passing(1)[0]
	alloc := f.running(f.name, 1)[0]
	if want := "egress-" + f.instance(alloc.ID); entry.Service.ID != want {
		t.Errorf("service id = %q, want %q", entry.Service.ID, want)
	}
	for key, want := range map[string]string{
		"provider":   "local",
		"namespace":  "default",
		"job":        f.name,
		"group":      "proxy",
		"alloc":      alloc.ID,
		"task":       "proxy",
		"node":       alloc.NodeID,
		"instance":   f.instance(alloc.ID),
		"country":    "DE",
		"max_leases": "7",
		"exit_ip":    "127.0.0.1",
	} {
		if got := entry.Service.Meta[key]; got != want {
			t.Errorf("meta %s = %q, want %q", key, got, want)
		}
	}
	if tags := strings.Join(entry.Service.Tags, " "); tags != "egress fast" {
		t.Errorf("tags = %q, want %q", tags, "egress fast")
	}
	f.works(proxyURL(entry))
}

func TestCrashIsSeenAndTheProxyComesBack(t *testing.T) {
	f := shared(t)
	f.fleet(map[string]string{"count": "1"})
	entry := f.passing(1)[0]
	before := f.listener(entry.Service.Port)
	if err := before.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	var after guard.Process
	f.until("another process serves", func(ctx context.Context) error {
		entries, err := f.Consul.Passing(ctx, f.name)
		if err != nil || len(entries) != 1 {
			return fmt.Errorf("%d passing: %w", len(entries), err)
		}
		processes, err := f.listeners(entries[0].Service.Port)
		if err != nil || len(processes) != 1 || processes[0].PID == before.PID {
			return fmt.Errorf("listeners %v, %w", processes, err)
		}
		after = processes[0]
		return nil
	})
	t.Logf("process %d became %d", before.PID, after.PID)
	f.works(proxyURL(f.passing(1)[0]))
	// A person finds out why.
	f.event(f.name, "signal 9", "Terminated")
}

func TestStopLeavesNothing(t *testing.T) {
	f := shared(t)
	f.fleet(map[string]string{"count": "2"})
	entries := f.passing(2)
	f.stop(f.name)
	for _, entry := range entries {
		if processes, err := f.listeners(entry.Service.Port); err != nil || len(processes) > 0 {
			t.Errorf("port %d: %v, %v", entry.Service.Port, processes, err)
		}
	}
	if entries, err := f.Consul.Services(t.Context(), f.name); err != nil || len(entries) > 0 {
		t.Errorf("registered after the stop: %v, %v", entries, err)
	}
}

func TestUpdateReplacesTheInstance(t *testing.T) {
	f := shared(t)
	f.fleet(map[string]string{"count": "1", "attributes": `{ country = "DE" }`})
	old := f.passing(1)[0]
	oldAlloc := f.running(f.name, 1)[0].ID
	f.fleet(map[string]string{"count": "1", "attributes": `{ country = "FR" }`})
	f.until("the new instance alone is there", func(ctx context.Context) error {
		entries, err := f.Consul.Services(ctx, f.name)
		if err != nil {
			return err
		}
		if len(entries) != 1 || entries[0].Service.Meta["country"] != "FR" {
			return fmt.Errorf("registered: %d", len(entries))
		}
		return f.traces(ctx, oldAlloc)
	})
	entry := f.passing(1)[0]
	if entry.Service.ID == old.Service.ID {
		t.Errorf("the new instance has the old one's id %s", entry.Service.ID)
	}
	f.works(proxyURL(entry))
}

func TestGrowingLeavesTheOthersAlone(t *testing.T) {
	f := shared(t)
	f.fleet(map[string]string{"count": "10"})
	pids := map[string]int{}
	for _, entry := range f.passing(10) {
		pids[entry.Service.ID] = f.listener(entry.Service.Port).PID
	}
	f.fleet(map[string]string{"count": "30"})
	same := 0
	for _, entry := range f.passing(30) {
		if pid, ok := pids[entry.Service.ID]; ok && f.listener(entry.Service.Port).PID == pid {
			same++
		}
	}
	if same != len(pids) {
		t.Errorf("%d of %d proxies still are what they were", same, len(pids))
	}
}
