package e2e_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	nomad "github.com/hashicorp/nomad/api"

	"github.com/egress-proxies/egress/e2e/cluster"
	"github.com/egress-proxies/egress/e2e/guard"
	"github.com/egress-proxies/egress/lease/api"
)

// freshList is how old a crawler's list of replicas may be: docs/operations.md
// asks for a second, of the three that a replica goes on after it has left it.
const freshList = time.Second

// caller is a crawler that uses the lease service with nothing but HTTP, JSON and Consul's list of
// the passing replicas. It never repeats what was refused.
type caller struct {
	f       *fixture
	service string
	http    *http.Client
	// requests counts those that were answered as they should be.
	requests *atomic.Int64
}

// send asks one of the passing replicas, chosen anew each time.
func (c *caller) send(ctx context.Context, method, path string, in, out any, want int) error {
	for {
		listed := time.Now()
		entries, err := c.f.Consul.Passing(ctx, c.service)
		if err != nil {
			return err
		}
		if len(entries) == 0 {
			return errors.New("no replica passes in Consul")
		}
		service := entries[rand.IntN(len(entries))].Service
		root := "http://" + net.JoinHostPort(service.Address, strconv.Itoa(service.Port))
		err = c.call(ctx, method, root+path, in, out, want)
		var broken *url.Error
		if errors.As(err, &broken) && time.Since(listed) > freshList {
			continue // The machine slept: the list was older than it may be.
		}
		if err == nil {
			c.requests.Add(1)
		}
		return err
	}
}

func (c *caller) call(ctx context.Context, method, target string, in, out any, want int) error {
	body, err := json.Marshal(in)
	if err != nil {
		return err
	}
	request, err := http.NewRequestWithContext(ctx, method, target, bytes.NewReader(body))
	if err != nil {
		return err
	}
	response, err := c.http.Do(request)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	answer, err := io.ReadAll(response.Body)
	if err != nil {
		return err
	}
	if response.StatusCode != want {
		return fmt.Errorf("%s %s: %s, want %d: %s", method, target, response.Status, want, answer)
	}
	if out == nil {
		return nil
	}
	return json.Unmarshal(answer, out)
}

// round acquires a lease, renews it and gives it back.
func (c *caller) round(ctx context.Context) error {
	var granted api.Leases
	// A proxy whose probe is late on a busy machine is waited for.
	ask := api.Acquire{TTL: api.Duration(patience), Wait: api.Duration(patience / 2)}
	if err := c.send(ctx, http.MethodPost, api.PathLeases, ask, &granted, http.StatusCreated); err != nil {
		return err
	}
	path := api.PathLeases + "/" + granted.Leases[0].ID
	if err := c.send(ctx, http.MethodPost, path+"/renew", struct{}{}, nil, http.StatusOK); err != nil {
		return err
	}
	return c.send(ctx, http.MethodDelete, path, nil, nil, http.StatusNoContent)
}

// crawl lets n crawlers go on until stop, which fails the test when one of their
// requests was refused or failed.
func (f *fixture) crawl(service string, n int) (requests *atomic.Int64, stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	requests = new(atomic.Int64)
	var group sync.WaitGroup
	for range n {
		c := &caller{f: f, service: service, http: &http.Client{Transport: &http.Transport{}}, requests: requests}
		group.Go(func() {
			defer c.http.CloseIdleConnections()
			for ctx.Err() == nil {
				// Not ctx: a request that has begun ends.
				if err := c.round(context.Background()); err != nil {
					f.t.Errorf("a crawler was failed: %v", err)
					return
				}
			}
		})
	}
	stop = sync.OnceFunc(func() { cancel(); group.Wait() })
	f.t.Cleanup(stop)
	return requests, stop
}

// replicas waits until n allocations of the lease service, all of one job
// version, run and pass.
func (f *fixture) replicas(id string, n int, version uint64) []*nomad.AllocationListStub {
	f.t.Helper()
	var allocs []*nomad.AllocationListStub
	f.until(fmt.Sprintf("%d replicas of version %d pass", n, version), func(ctx context.Context) error {
		allocs = slices.DeleteFunc(f.allocs(id), func(a *nomad.AllocationListStub) bool { return terminal(a) })
		for _, a := range allocs {
			if a.JobVersion != version || a.ClientStatus != nomad.AllocClientStatusRunning {
				return fmt.Errorf("alloc %s of version %d is %s", a.ID, a.JobVersion, a.ClientStatus)
			}
		}
		entries, err := f.Consul.Passing(ctx, id)
		if err != nil || len(entries) != n || len(allocs) != n {
			return fmt.Errorf("%d allocations, %d passing: %w", len(allocs), len(entries), err)
		}
		return nil
	})
	return allocs
}

// leaderPort is the port of the replica that leads.
func (f *fixture) leaderPort(id string) (port int) {
	f.t.Helper()
	f.until("a replica leads", func(ctx context.Context) error {
		entries, err := f.Consul.Passing(ctx, id)
		if err != nil {
			return err
		}
		for _, entry := range entries {
			c := &caller{http: http.DefaultClient}
			var ready api.Ready
			root := "http://" + net.JoinHostPort(entry.Service.Address, strconv.Itoa(entry.Service.Port))
			if err := c.call(ctx, http.MethodGet, root+api.PathReady, nil, &ready, http.StatusOK); err != nil {
				return err
			}
			if ready.Role == "leader" {
				port = entry.Service.Port
				return nil
			}
		}
		return fmt.Errorf("none of %d", len(entries))
	})
	return port
}

// TestLeaseServiceIsUpdatedWithoutARefusal: crawlers go on through a rolling
// update of the job that the product comes with, and the service comes back when
// its leader is killed.
func TestLeaseServiceIsUpdatedWithoutARefusal(t *testing.T) {
	f := own(t, cluster.Config{}) // a killed replica leaves a check in Consul for a while
	f.fleet(map[string]string{"count": "5", "bind": "127.0.2.1${NOMAD_ALLOC_INDEX}"})
	id := f.name + "-lease"
	f.ended[id] = false
	t.Cleanup(func() { f.explain(); f.stop(id) })
	run := []string{"job", "run", "lease", "--var", "name=" + id, "--var", "service=" + f.name, "--var", "prefix=" + id + "/",
		"--var", "binary=" + f.Plugin, "--var", "consul=" + f.Consul.Address}
	if out, code := f.egress(run...); code != 0 || !strings.Contains(out, "2 of 2 healthy") {
		t.Fatalf("exit code %d, want two healthy replicas:\n%s", code, out)
	}
	f.passing(5)
	f.replicas(id, 2, 0)

	requests, stop := f.crawl(id, 4)
	witness := &caller{f: f, service: id, http: &http.Client{Transport: &http.Transport{}}, requests: requests}
	var kept api.Leases
	if err := witness.send(t.Context(), http.MethodPost, api.PathLeases, api.Acquire{TTL: api.Duration(10 * time.Minute), Wait: api.Duration(patience / 2)}, &kept, http.StatusCreated); err != nil {
		t.Fatal(err)
	}
	path := api.PathLeases + "/" + kept.Leases[0].ID

	began := time.Now()
	if out, code := f.egress(append(run, "--var", `args=["--log-json"]`)...); code != 0 || !strings.Contains(out, "2 of 2 healthy") {
		t.Fatalf("exit code %d, want two healthy replicas:\n%s", code, out)
	}
	f.replicas(id, 2, 1)
	more := requests.Load() + 50
	f.until("crawlers go on", func(context.Context) error {
		if n := requests.Load(); n < more && !t.Failed() {
			return fmt.Errorf("%d requests, want %d", n, more)
		}
		return nil
	})
	stop()
	t.Logf("the update took %.1f s; %d requests, none failed: %t", time.Since(began).Seconds(), requests.Load(), !t.Failed())
	if err := witness.send(t.Context(), http.MethodPost, path+"/renew", struct{}{}, nil, http.StatusOK); err != nil {
		t.Errorf("the lease of before the update: %v", err)
	}

	victims, err := guard.Listeners(f.Dir, f.leaderPort(id))
	if err != nil || len(victims) != 1 {
		t.Fatalf("processes of the leader: %v, %v", victims, err)
	}
	died := time.Now()
	if err := victims[0].Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	f.until("leases are granted again", func(ctx context.Context) error { return witness.round(ctx) })
	t.Logf("granted again %.1f s after the leader was killed", time.Since(died).Seconds())
	f.replicas(id, 2, 1)
	if err := witness.send(t.Context(), http.MethodPost, path+"/renew", struct{}{}, nil, http.StatusOK); err != nil {
		t.Errorf("the lease of before the leader's death: %v", err)
	}
	if err := witness.send(t.Context(), http.MethodDelete, path, nil, nil, http.StatusNoContent); err != nil {
		t.Error(err)
	}
}
