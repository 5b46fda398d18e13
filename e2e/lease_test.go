package e2e_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	consul "github.com/hashicorp/consul/api"
	nomad "github.com/hashicorp/nomad/api"

	"github.com/egress-proxies/egress/jobs"
	"github.com/egress-proxies/egress/lease/api"
)

// leases is the lease service of a test, asked with nothing but HTTP and JSON.
type leases struct {
	f    *fixture
	root string
}

// leaseJob runs the lease service for the test's proxies as a Nomad job, in one
// replica unless the variables say otherwise.
func (f *fixture) leaseJob(variables map[string]string) (id string) {
	f.t.Helper()
	id = f.name + "-lease"
	all := map[string]string{"binary": f.Plugin, "consul": f.Consul.Address, "count": "1", "prefix": id + "/"}
	for key, value := range variables {
		all[key] = value
	}
	f.load("lease", id, all)
	return id
}

// leaseService is leaseJob that waits until Consul calls the service healthy.
func (f *fixture) leaseService(variables map[string]string) *leases {
	f.t.Helper()
	id := f.leaseJob(variables)
	var found *consul.ServiceEntry
	f.until("the lease service is healthy", func(ctx context.Context) error {
		entries, err := f.Consul.Passing(ctx, id)
		if err != nil {
			return err
		}
		if len(entries) == 0 {
			return fmt.Errorf("%s isn't passing", id)
		}
		found = entries[0]
		return nil
	})
	address := net.JoinHostPort(found.Service.Address, strconv.Itoa(found.Service.Port))
	return &leases{f: f, root: "http://" + address}
}

// call sends a request and decodes the answer into out when the status is the
// wanted one.
func (l *leases) call(ctx context.Context, method, path string, in, out any, want int) error {
	var body bytes.Buffer
	if in != nil {
		if err := json.NewEncoder(&body).Encode(in); err != nil {
			return err
		}
	}
	request, err := http.NewRequestWithContext(ctx, method, l.root+path, &body)
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	var answer bytes.Buffer
	if _, err := answer.ReadFrom(response.Body); err != nil {
		return err
	}
	if response.StatusCode != want {
		return fmt.Errorf("%s %s: %s, want %d: %s", method, path, response.Status, want, answer.String())
	}
	if out == nil {
		return nil
	}
	return json.Unmarshal(answer.Bytes(), out)
}

// acquire gets one lease, and waits for the capacity.
func (l *leases) acquire(request api.Acquire) api.Lease {
	l.f.t.Helper()
	var answer api.Leases
	l.f.until("a lease is granted", func(ctx context.Context) error {
		return l.call(ctx, http.MethodPost, api.PathLeases, request, &answer, http.StatusCreated)
	})
	if len(answer.Leases) != 1 {
		l.f.t.Fatalf("%d leases, want one", len(answer.Leases))
	}
	return answer.Leases[0]
}

func (l *leases) release(lease api.Lease) {
	l.f.t.Helper()
	// Not the test's context: clean-ups release too.
	err := l.call(context.Background(), http.MethodDelete, api.PathLeases+"/"+lease.ID, nil, nil, http.StatusNoContent)
	if err != nil {
		l.f.t.Error(err)
	}
}

func TestTenProxiesAreTenLeases(t *testing.T) {
	f := shared(t)
	lease := f.leaseService(nil)
	// Each has an exit address of its own, as those that share one share their
	// capacity.
	f.fleet(map[string]string{"count": "10", "bind": "127.0.2.1${NOMAD_ALLOC_INDEX}"})
	began := time.Now()
	f.passing(10)
	t.Logf("ten proxies pass after %.1f s", time.Since(began).Seconds())

	seen := map[string]bool{}
	for range 10 {
		granted := lease.acquire(api.Acquire{Target: f.Origin.HTTP, TTL: api.Duration(patience)})
		if seen[granted.Proxy] {
			t.Errorf("proxy %s leased twice", granted.Proxy)
		}
		seen[granted.Proxy] = true
		f.worksURL(granted.URL)
		t.Cleanup(func() { lease.release(granted) })
	}
	// The eleventh crawler is told that there is none, not that it may not.
	if err := lease.call(t.Context(), http.MethodPost, api.PathLeases, api.Acquire{}, nil, http.StatusConflict); err != nil {
		t.Error(err)
	}
}

// TestLeaseJobFollowsItsVariables: what the agent makes of the jobspec.
func TestLeaseJobFollowsItsVariables(t *testing.T) {
	f := shared(t)
	load := func(variables map[string]string) (*nomad.TaskGroup, string) {
		t.Helper()
		job, err := jobs.Load(t.Context(), f.Nomad.Client, "lease", variables)
		if err != nil {
			t.Fatal(err)
		}
		group := job.TaskGroups[0]
		return group, fmt.Sprint(group.Tasks[0].Config["args"])
	}
	group, args := load(nil)
	if *group.Count != 2 || len(group.Constraints) != 0 || group.Services[0].Checks[0].Protocol != "http" ||
		!strings.Contains(args, "--store consul") || !strings.Contains(args, "--advertise http://${NOMAD_ADDR_http}") || strings.Contains(args, "-file") {
		t.Errorf("by default: %d replicas, constraints %v, %s", *group.Count, group.Constraints, args)
	}
	// Two pools in memory would each lease every proxy.
	if group, args = load(map[string]string{"store": "memory", "count": "3"}); *group.Count != 1 {
		t.Errorf("%d replicas in memory: %s", *group.Count, args)
	}
	group, args = load(map[string]string{
		"distinct_hosts": "true", "token_file": "/t", "tls_cert": "/c", "tls_key": "/k", "ca_file": "/a", "args": `["--rate", "5"]`,
	})
	if len(group.Constraints) != 1 || group.Constraints[0].Operand != "distinct_hosts" || group.Services[0].Checks[0].Protocol != "https" {
		t.Errorf("constraints %v, check %+v", group.Constraints, group.Services[0].Checks[0])
	}
	for _, want := range []string{"--advertise https://${NOMAD_ADDR_http}", "--token-file /t", "--tls-cert /c --tls-key /k", "--ca-file /a", "--rate 5"} {
		if !strings.Contains(args, want) {
			t.Errorf("args %s, want %s", args, want)
		}
	}
}
