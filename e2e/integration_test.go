package e2e_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"net/http"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	consul "github.com/hashicorp/consul/api"
	nomad "github.com/hashicorp/nomad/api"

	"github.com/egress-proxies/egress/e2e/cluster"
)

// serviceOf waits until one instance of a service has the status.
func (f *fixture) serviceOf(name, status string) *consul.ServiceEntry {
	f.t.Helper()
	var found *consul.ServiceEntry
	f.until(name+" is "+status, func(ctx context.Context) error {
		entries, err := f.Consul.Services(ctx, name)
		if err != nil || len(entries) != 1 {
			return errNotYet(len(entries), err)
		}
		found = entries[0]
		if got := found.Checks.AggregatedStatus(); got != status {
			var outputs []string
			for _, check := range found.Checks {
				outputs = append(outputs, check.Output)
			}
			return fmt.Errorf("%s: %s", got, strings.Join(outputs, "; "))
		}
		return nil
	})
	return found
}

// TestNomadServiceOfTheInstance is case 13: Nomad's own service block with
// address_mode = "driver" has the instance's address and port.
func TestNomadServiceOfTheInstance(t *testing.T) {
	f := shared(t)
	job := f.proxyJob(f.name, map[string]any{
		"provider": "local", "port": "proxy",
		"service": []map[string]any{{"name": f.name}},
	})
	theirs := f.name + "-nomad"
	job.TaskGroups[0].Networks[0].DynamicPorts[0].To = -1 // "to" is needed: nomad 3599.
	job.TaskGroups[0].Tasks[0].Services = []*nomad.Service{{
		Name: theirs, PortLabel: "proxy", AddressMode: "driver", Provider: "consul",
	}}
	f.submit(job)
	own := f.passing(1)[0]
	entry := f.serviceOf(theirs, consul.HealthPassing)
	if entry.Service.Address != own.Service.Address || entry.Service.Port != own.Service.Port {
		t.Errorf("Nomad registers %s:%d, the proxy is at %s:%d",
			entry.Service.Address, entry.Service.Port, own.Service.Address, own.Service.Port)
	}
	f.works(proxyURL(entry))
}

// TestScriptCheckProbes: a script check runs the driver's own probe.
func TestScriptCheckProbes(t *testing.T) {
	f := shared(t)
	job := f.proxyJob(f.name, map[string]any{
		"provider": "local", "port": "proxy",
		"service": []map[string]any{{"name": f.name}},
		"probe":   []map[string]any{{"urls": []string{f.Origin.HTTP + "/gate/" + f.name}, "timeout": "2s"}},
	})
	checked := f.name + "-checked"
	job.TaskGroups[0].Tasks[0].Services = []*nomad.Service{{
		Name: checked, PortLabel: "proxy", Provider: "consul",
		Checks: []nomad.ServiceCheck{{
			Name: "probe", Type: "script", Command: "probe", Interval: 2e9, Timeout: 10e9,
		}},
	}}
	f.submit(job)
	f.passing(1)
	f.serviceOf(checked, consul.HealthPassing)
	f.Origin.Hold(f.name)
	f.serviceOf(checked, consul.HealthCritical)
	// The driver's own registration has noticed too.
	own := f.serviceOf(f.name, consul.HealthCritical)
	for _, check := range own.Checks {
		if check.Type == "ttl" && !strings.Contains(check.Output, "timeout") {
			t.Errorf("output = %q, want the stage that failed", check.Output)
		}
	}
	f.Origin.Release(f.name)
	f.serviceOf(checked, consul.HealthPassing)
	f.serviceOf(f.name, consul.HealthPassing)
}

// TestAllocLogsShowEachLineOnce is what `nomad alloc logs` shows of the proxy's
// own output, also over the death of the agent.
func TestAllocLogsShowEachLineOnce(t *testing.T) {
	f := own(t, cluster.Config{})
	f.fleet(map[string]string{"count": "1"})
	proxy := proxyURL(f.passing(1)[0])
	alloc := f.running(f.name, 1)[0].ID
	const lines = 6
	for line := range lines {
		if line == lines/2 {
			f.restartNomad(f.Nomad.Kill)
		}
		// A gate that nobody holds is a page like any other.
		if _, err := f.fetch(t.Context(), proxy, fmt.Sprintf("%s/gate/line-%d", f.Origin.HTTP, line)); err != nil {
			t.Fatal(err)
		}
	}
	f.until("the logs have each line", func(ctx context.Context) error {
		text, err := f.logs(ctx, alloc)
		if err != nil {
			return err
		}
		for line := range lines {
			if n := strings.Count(text, fmt.Sprintf("/gate/line-%d\"", line)); n != 1 {
				return fmt.Errorf("line %d is there %d times, in %d bytes", line, n, len(text))
			}
		}
		return nil
	})
}

// TestAllocLogsGoOnAfterThePluginWasKilled alone: Nomad's log collector reads a
// pipe to its end, and would take the plugin's death for that end.
func TestAllocLogsGoOnAfterThePluginWasKilled(t *testing.T) {
	f := own(t, cluster.Config{})
	f.fleet(map[string]string{"count": "1"})
	proxy := proxyURL(f.passing(1)[0])
	alloc := f.running(f.name, 1)[0].ID
	for _, line := range []string{"before", "after"} {
		if line == "after" {
			f.killPlugin()
		}
		if _, err := f.fetch(t.Context(), proxy, f.Origin.HTTP+"/gate/line-"+line); err != nil {
			t.Fatal(err)
		}
		f.until("the logs have the line "+line, func(ctx context.Context) error {
			text, err := f.logs(ctx, alloc)
			if err == nil && !strings.Contains(text, "/gate/line-"+line) {
				err = fmt.Errorf("it is not in %d bytes", len(text))
			}
			return err
		})
	}
}

// logs are the outputs of an allocation's task, as a person gets them.
func (f *fixture) logs(ctx context.Context, alloc string) (string, error) {
	nomad, err := cluster.Server("nomad", "EGRESS_NOMAD_BIN")
	if err != nil {
		return "", err
	}
	var all bytes.Buffer
	for _, stream := range []string{"-stderr=false", "-stderr"} {
		cmd := exec.CommandContext(ctx, nomad, "alloc", "logs", "-address="+f.Nomad.Address, stream, alloc)
		cmd.Stdout, cmd.Stderr = &all, &all
		if err := cmd.Run(); err != nil {
			return "", fmt.Errorf("%w: %s", err, all.String())
		}
	}
	return all.String(), nil
}

// TestTwentyCyclesLeaveNothing is case 10. Each stop looks for processes, state
// and registrations; here the plugin itself must come back to what it was.
func TestTwentyCyclesLeaveNothing(t *testing.T) {
	f := own(t, cluster.Config{})
	cycle := func() {
		f.ended[f.name] = false
		f.fleet(map[string]string{"count": "1"})
		f.passing(1)
		f.stop(f.name)
	}
	cycle() // Whatever is made once is there now.
	baseline := f.metrics()
	for range 20 {
		cycle()
	}
	f.until("the plugin is at its baseline", func(context.Context) error {
		after := f.metrics()
		// The scrape itself and the agent's calls come and go.
		const slack = 5
		for _, name := range []string{"go_goroutines", "process_open_fds"} {
			if after[name] > baseline[name]+slack {
				return fmt.Errorf("%s = %v, was %v", name, after[name], baseline[name])
			}
		}
		return nil
	})
}

// metrics are the plugin's own figures that have no labels.
func (f *fixture) metrics() map[string]float64 {
	f.t.Helper()
	response, err := http.Get(f.Nomad.Metrics)
	if err != nil {
		f.t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	figures := map[string]float64{}
	for lines := bufio.NewScanner(response.Body); lines.Scan(); {
		if name, value, ok := strings.Cut(lines.Text(), " "); ok && name != "#" {
			if figure, err := strconv.ParseFloat(value, 64); err == nil {
				figures[name] = figure
			}
		}
	}
	if figures["go_goroutines"] == 0 {
		f.t.Fatalf("no goroutines in %s", f.Nomad.Metrics)
	}
	return figures
}
