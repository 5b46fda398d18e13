package consul

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/consul/api"

	"github.com/egress-proxies/egress/lease"
	"github.com/egress-proxies/egress/lease/leasetest"
)

// seenPlaces is what a watcher told last.
type seenPlaces struct {
	mu   sync.Mutex // guards what follows
	list []lease.Place
	told int
}

func (s *seenPlaces) update(list []lease.Place) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.list, s.told = list, s.told+1
}

// wants waits until the places are "target state reason, …".
func (s *seenPlaces) wants(t *testing.T, want ...string) {
	t.Helper()
	leasetest.Until(t, 30*time.Second, fmt.Sprintf("the targets are %q", want), func() error {
		s.mu.Lock()
		defer s.mu.Unlock()
		got := []string{}
		for _, p := range s.list {
			got = append(got, fmt.Sprintf("%s %s %s", p.Name, p.State, p.Reason))
		}
		if diff := cmp.Diff(append([]string{}, want...), got); diff != "" || s.told == 0 {
			return fmt.Errorf("told %d times: %s", s.told, diff)
		}
		return nil
	})
}

// registerTarget registers a target as a driver does.
func registerTarget(t *testing.T, c *leasetest.Consul, name, status string, meta map[string]string) {
	t.Helper()
	all := map[string]string{"provider": "hv", "type": "kvm", "target": name, "node": "n1", "cluster": "x", "publisher": "y"}
	for key, value := range meta {
		all[key] = value
	}
	if err := c.Client.Agent().ServiceRegister(&api.AgentServiceRegistration{
		ID: "egress-target-hv-" + name, Name: "egress-target", Meta: all,
		Check: &api.AgentServiceCheck{CheckID: "egress-target-hv-" + name, TTL: "1h", Status: status},
	}); err != nil {
		t.Fatal(err)
	}
}

func TestTargetsAreFollowedAndOutliveConsul(t *testing.T) {
	c := leasetest.StartConsul(t)
	seen := &seenPlaces{}
	w := &PlaceWatcher{Client: c.Client, Service: "egress-target", Update: seen.update}
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { _ = w.Run(ctx) })
	defer wg.Wait()
	defer cancel()
	seen.wants(t)
	registerTarget(t, c, "a", "passing", map[string]string{"ready": "true", "reason": "Reachable", "pool_available_gib": "400"})
	seen.wants(t, "a ready Reachable")
	if p := seen.list[0]; p.Provider != "hv" || p.Type != "kvm" || p.Node != "n1" || !cmp.Equal(p.Facts, map[string]string{"pool_available_gib": "400"}) {
		t.Errorf("%+v", p)
	}
	registerTarget(t, c, "b", "warning", map[string]string{"ready": "false", "reason": "PoolNotActive", "advice": "start it"})
	seen.wants(t, "a ready Reachable", "b not_ready PoolNotActive")
	if err := c.Client.Agent().UpdateTTL("egress-target-hv-a", "TTL expired", "critical"); err != nil {
		t.Fatal(err)
	}
	seen.wants(t, "a silent Silent", "b not_ready PoolNotActive")
	c.Kill()
	c.Start()
	// Of its checks a restarted agent knows nothing until the plugins tell again.
	registerTarget(t, c, "c", "passing", map[string]string{"ready": "true", "reason": "Reachable"})
	leasetest.Until(t, 30*time.Second, "the watcher follows again", func() error {
		seen.mu.Lock()
		defer seen.mu.Unlock()
		if n := len(seen.list); n < 1 || seen.list[n-1].Name != "c" {
			return fmt.Errorf("%d targets", n)
		}
		return nil
	})
}

// Something else under the service's name is no target.
func TestForeignEntriesAreNoTargets(t *testing.T) {
	var foreign entry
	foreign.Service.ID = "web"
	if list := placesOf([]entry{foreign}); len(list) != 0 {
		t.Errorf("%+v", list)
	}
}
