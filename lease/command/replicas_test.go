package command

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	consulapi "github.com/hashicorp/consul/api"

	"github.com/egress-proxies/egress/lease/api"
	"github.com/egress-proxies/egress/lease/client"
	"github.com/egress-proxies/egress/lease/consul"
	"github.com/egress-proxies/egress/lease/leasetest"
)

// pair is two replicas over n proxies of capacity one.
func pair(t *testing.T, n int, args ...string) (leader, follower *replica) {
	t.Helper()
	server := leasetest.StartConsul(t)
	for i := range n {
		server.Proxy(fmt.Sprintf("p%02d", i), "127.0.0.1", 3000+i, "", nil)
	}
	args = append(args, "--store", "consul")
	one, two := newReplica(t, server.Address, args...), newReplica(t, server.Address, args...)
	one.ready()
	two.ready()
	leader = leaderOf(t, []*replica{one, two})
	if leader == two {
		return two, one
	}
	return one, two
}

// Case 21: over two processes.
func TestParallelAcquiresOverReplicasGetDifferentProxies(t *testing.T) {
	const n = 50
	one, two := pair(t, n)
	var mu sync.Mutex
	seen := map[string]bool{}
	var group sync.WaitGroup
	for i := range n {
		group.Go(func() {
			leases, err := []*replica{one, two}[i%2].client.Acquire(t.Context(), api.Acquire{TTL: api.Duration(time.Minute)}, "")
			if err != nil {
				t.Error(err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			seen[leases[0].Proxy] = true
		})
	}
	group.Wait()
	if len(seen) != n {
		t.Errorf("%d different proxies, want %d", len(seen), n)
	}
	_, err := two.client.Acquire(t.Context(), api.Acquire{}, "")
	var p *api.Problem
	if !errors.As(err, &p) || p.Code() != api.CodeNoCapacity || p.Counts.AtCapacity != n {
		t.Errorf("one more: %v", err)
	}
}

// Case 22: across the death of the server.
func TestSlotComesBackInTimeAlthoughTheServerWasKilled(t *testing.T) {
	leader, follower := pair(t, 1)
	const ttl = 8 * time.Second
	began := time.Now()
	if _, err := leader.client.Acquire(t.Context(), api.Acquire{TTL: api.Duration(ttl)}, ""); err != nil {
		t.Fatal(err)
	}
	leader.kill()
	var err error
	leasetest.Until(t, time.Minute, "the slot comes back", func() error {
		_, err = follower.client.Acquire(t.Context(), api.Acquire{}, "")
		return err
	})
	// A tick is a second for the clocks of two machines; the rest is the test's.
	if took := time.Since(began); took < ttl-100*time.Millisecond || took > ttl+2500*time.Millisecond {
		t.Errorf("the slot came back after %s, want %s and a tick", took, ttl)
	}
}

func TestRollingUpdateRefusesNoRequest(t *testing.T) {
	leader, follower := pair(t, 4)
	ctx, stop := context.WithCancel(t.Context())
	var group sync.WaitGroup
	requests := make([]atomic.Int32, 3)
	for i := range requests {
		group.Go(func() {
			for ctx.Err() == nil {
				// Not the client of this project: it repeats what is refused.
				response, err := http.Post("http://"+follower.address+api.PathLeases, "application/json", strings.NewReader(`{"ttl":2}`))
				if err != nil {
					t.Error(err)
					return
				}
				var answer api.Leases
				err = json.NewDecoder(response.Body).Decode(&answer)
				response.Body.Close()
				if response.StatusCode != http.StatusCreated || err != nil {
					t.Errorf("refused: %s, %v", response.Status, err)
					return
				}
				if err := follower.client.Release(t.Context(), answer.Leases[0].ID); err != nil {
					t.Error(err)
				}
				requests[i].Add(2)
			}
		})
	}
	waitMore := func() {
		t.Helper()
		before := requests[0].Load()
		leasetest.Until(t, time.Minute, "requests go on", func() error {
			response, err := follower.client.Leases(t.Context())
			if err == nil && requests[0].Load() < before+20 {
				err = fmt.Errorf("%d requests, %d leases", requests[0].Load(), len(response))
			}
			return err
		})
	}
	waitMore()
	leader.stop()
	waitMore()
	leader.start()
	leader.ready()
	waitMore()
	stop()
	group.Wait()
	t.Logf("%d requests of one client through the follower while the leader was replaced", requests[0].Load())
}

// An acquire that waits longer than a replica takes to stop is told so, instead
// of losing its connection.
func TestStoppingReplicaAnswersWhoWaits(t *testing.T) {
	t.Parallel()
	leader, follower := pair(t, 1, "--shutdown-timeout", "500ms")
	if _, err := leader.client.Acquire(t.Context(), api.Acquire{TTL: api.Duration(time.Hour)}, ""); err != nil {
		t.Fatal(err)
	}
	for _, stopped := range []*replica{follower, leader} {
		answer := make(chan error, 1)
		go func() {
			// Not the client of this project: it repeats what is refused.
			response, err := http.Post("http://"+stopped.address+api.PathLeases, "application/json", strings.NewReader(`{"wait":"1m"}`))
			if err == nil {
				defer response.Body.Close()
				var p api.Problem
				if err = json.NewDecoder(response.Body).Decode(&p); err == nil && (p.Code() != api.CodeNoLeader || p.RetryAfterSeconds == 0) {
					err = fmt.Errorf("%+v", p)
				}
			}
			answer <- err
		}()
		leasetest.Until(t, time.Minute, "the acquire waits", func() error {
			text, err := leader.metrics()
			if err == nil && !strings.Contains(text, "egress_lease_waiting 1") {
				err = errors.New("nobody waits")
			}
			return err
		})
		stopped.stop()
		if err := <-answer; err != nil {
			t.Errorf("through %s: %v", stopped.address, err)
		}
	}
}

// A leader that is cut off from Consul, and asked nothing since, believes that it
// leads still. It must not call a lease unknown that its successor has granted.
func TestCutOffLeaderForgetsNothing(t *testing.T) {
	t.Parallel()
	server := leasetest.StartConsul(t)
	server.Proxy("p", "127.0.0.1", 3000, "", nil)
	link := leasetest.NewLink(t, server.Address)
	old := newReplica(t, link.Address, "--store", "consul")
	old.ready()
	next := newReplica(t, server.Address, "--store", "consul")
	next.ready()
	link.Cut()
	leaderOf(t, []*replica{next})
	leases, err := next.client.Acquire(t.Context(), api.Acquire{TTL: api.Duration(time.Hour)}, "")
	if err != nil {
		t.Fatal(err)
	}
	ready, err := old.readiness()
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("the old leader says that it is a %s", ready.Role)
	// It may say nothing for as long as it can't know.
	quick := &http.Client{Timeout: 3 * time.Second}
	if response, err := quick.Post("http://"+old.address+api.PathLeases+"/"+leases[0].ID+"/renew", "application/json", strings.NewReader("{}")); err == nil {
		_ = response.Body.Close()
		t.Errorf("the old leader answered with %s", response.Status)
	}
	link.Heal()
	leasetest.Until(t, time.Minute, "the lease is known through the old leader", func() error {
		response, err := quick.Post("http://"+old.address+api.PathLeases+"/"+leases[0].ID+"/renew", "application/json", strings.NewReader("{}"))
		if err == nil {
			_ = response.Body.Close()
			if response.StatusCode != http.StatusOK {
				err = errors.New(response.Status)
			}
			if response.StatusCode == http.StatusNotFound {
				t.Error("the lease is forgotten")
			}
		}
		return err
	})
}

// A client that finds the replicas in Consul needs none of them in particular.
func TestClientFindsAnotherReplica(t *testing.T) {
	t.Parallel()
	server := leasetest.StartConsul(t)
	server.Proxy("p", "127.0.0.1", 3000, "", nil)
	var replicas []*replica
	for i := range 2 {
		r := newReplica(t, server.Address, "--store", "consul")
		replicas = append(replicas, r)
		r.ready()
		_, port, err := net.SplitHostPort(r.address)
		if err != nil {
			t.Fatal(err)
		}
		number, err := strconv.Atoi(port)
		if err != nil {
			t.Fatal(err)
		}
		// Without a check: Consul lists it although it is gone.
		service := &consulapi.AgentServiceRegistration{ID: fmt.Sprint("lease", i), Name: "egress-lease", Address: "127.0.0.1", Port: number}
		if err := server.Client.Agent().ServiceRegister(service); err != nil {
			t.Fatal(err)
		}
	}
	c, err := client.New(client.Config{Replicas: consul.Replicas(server.Client, "egress-lease", "http")})
	if err != nil {
		t.Fatal(err)
	}
	leases, err := c.Acquire(t.Context(), api.Acquire{TTL: api.Duration(time.Hour)}, "")
	if err != nil {
		t.Fatal(err)
	}
	leaderOf(t, replicas).kill()
	for range 4 { // each of the two has its turn
		if _, err := c.Renew(t.Context(), leases[0].ID, 0); err != nil {
			t.Error(err)
		}
	}
	if err := server.Client.Agent().ServiceDeregister("lease0"); err != nil {
		t.Fatal(err)
	}
	if err := server.Client.Agent().ServiceDeregister("lease1"); err != nil {
		t.Fatal(err)
	}
	if err := c.Release(t.Context(), leases[0].ID); err == nil || !strings.Contains(err.Error(), "no replica") {
		t.Errorf("without a replica: %v", err)
	}
}

// Nomad's kill_timeout of 30 s is enough, also when Consul hangs.
func TestReplicaStopsInTimeAlthoughConsulHangs(t *testing.T) {
	t.Parallel()
	server := leasetest.StartConsul(t)
	server.Proxy("p", "127.0.0.1", 3000, "", nil)
	link := leasetest.NewLink(t, server.Address)
	r := newReplica(t, link.Address, "--store", "consul")
	r.ready()
	link.Cut()
	waits := make(chan struct{})
	go func() { // a commit that does not end
		defer close(waits)
		_ = r.decides()
	}()
	leasetest.Until(t, time.Minute, "it says that it leads", func() error {
		text, err := r.metrics()
		if err == nil && !strings.Contains(text, "egress_lease_leader 1") {
			err = errors.New("it does not")
		}
		return err
	})
	began := time.Now()
	r.stop()
	took := time.Since(began)
	t.Logf("stopped after %.1f s", took.Seconds())
	if took > 28*time.Second {
		t.Errorf("stopped after %s, want it within Nomad's 30 s", took)
	}
	<-waits
}

// Who waits at a leader that stops goes on waiting at the next one.
func TestHandoverTakesAlongWhoWaits(t *testing.T) {
	t.Parallel()
	leader, follower := pair(t, 1)
	leases, err := leader.client.Acquire(t.Context(), api.Acquire{TTL: api.Duration(time.Hour)}, "")
	if err != nil {
		t.Fatal(err)
	}
	answer := make(chan error, 1)
	go func() {
		// Not the client of this project: it repeats what is refused.
		response, err := http.Post("http://"+leader.address+api.PathLeases, "application/json", strings.NewReader(`{"wait":"1m"}`))
		if err == nil {
			_ = response.Body.Close()
			if response.StatusCode != http.StatusCreated {
				err = errors.New(response.Status)
			}
		}
		answer <- err
	}()
	waits := func(r *replica) {
		t.Helper()
		leasetest.Until(t, time.Minute, "the acquire waits at "+r.address, func() error {
			text, err := r.metrics()
			if err == nil && !strings.Contains(text, "egress_lease_waiting 1") {
				err = errors.New("nobody waits")
			}
			return err
		})
	}
	waits(leader)
	leader.signal(syscall.SIGTERM)
	waits(follower)
	if err := follower.client.Release(t.Context(), leases[0].ID); err != nil {
		t.Error(err)
	}
	if err := <-answer; err != nil {
		t.Errorf("the acquire that waited: %v", err)
	}
	leader.ended()
}
