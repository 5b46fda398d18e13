package registry

import (
	"context"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/consul/api"
)

func target(name string) Target {
	return Target{
		Provider: "hv", Type: "kvm", Name: name, Ready: true, Reason: "Reachable",
		Facts: map[string]string{"pool_available_gib": "400", "pool_state": "running"},
	}
}

func broken(name string) Target {
	t := target(name)
	t.Ready, t.Reason, t.Advice, t.Facts = false, "PoolNotActive", "start the storage pool", nil
	return t
}

// publish runs targets as a plugin does, until stop.
func publish(t *testing.T, address, home string) (targets *Targets, stop func()) {
	t.Helper()
	targets, err := NewTargets(TargetConfig{Config: Config{Address: address, Cluster: "test", Node: "node-1"}, Home: home})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { targets.Run(ctx) })
	stop = func() {
		cancel()
		wg.Wait()
	}
	t.Cleanup(stop)
	return targets, stop
}

// targets are the status of the check and the reason of each, by name, and the
// entries.
func (a *realAgent) targets() (states map[string]string, entries map[string]*api.ServiceEntry) {
	states, entries = map[string]string{}, map[string]*api.ServiceEntry{}
	list, _, err := a.client.Health().Service(DefaultTargetService, "", false, nil)
	if err != nil {
		return states, entries
	}
	for _, entry := range list {
		name := entry.Service.Meta["target"]
		entries[name] = entry
		for _, check := range entry.Checks {
			if check.ServiceID == entry.Service.ID {
				states[name] = check.Status + " " + entry.Service.Meta["reason"]
			}
		}
	}
	return states, entries
}

func (a *realAgent) showsTargets(want map[string]string) func() bool {
	return func() bool {
		states, _ := a.targets()
		return cmp.Equal(want, states)
	}
}

func TestTargetsFollowTheirStandings(t *testing.T) {
	consul := startConsul(t, "")
	targets, _ := publish(t, consul.address, "/a")
	targets.Set([]Target{target("a"), broken("b/1")}, nil)
	consul.eventually("both targets are there", consul.showsTargets(map[string]string{
		"a": "passing Reachable", "b/1": "warning PoolNotActive",
	}))
	_, entries := consul.targets()
	meta := entries["a"].Service.Meta
	delete(meta, "publisher")
	if diff := cmp.Diff(map[string]string{
		"cluster": "test", "node": "node-1", "provider": "hv", "type": "kvm", "target": "a", "reason": "Reachable",
		"ready": "true", "pool_available_gib": "400", "pool_state": "running",
	}, meta); diff != "" {
		t.Errorf("meta: %s", diff)
	}
	if id := entries["b/1"].Service.ID; strings.ContainsAny(id, "/ ") || !strings.HasPrefix(id, "egress-target-hv-b-1-") {
		t.Errorf("id %q", id)
	}
	targets.Set([]Target{broken("a")}, nil)
	consul.eventually("a is broken, and b is no target any more", consul.showsTargets(map[string]string{
		"a": "warning PoolNotActive",
	}))
	_, entries = consul.targets()
	if meta := entries["a"].Service.Meta; meta["ready"] != "false" || meta["advice"] != "start the storage pool" {
		t.Errorf("meta %v", meta)
	}
	targets.Set([]Target{target("a")}, nil)
	consul.eventually("a is back", consul.showsTargets(map[string]string{"a": "passing Reachable"}))
}

// The next process of the plugin changes nothing that is still so, removes what
// is no more, and keeps what it does not know yet; it never touches what another
// plugin with the same agent published.
func TestTheNextProcessTakesOver(t *testing.T) {
	consul := startConsul(t, "")
	other, _ := publish(t, consul.address, "/other")
	other.Set([]Target{target("theirs")}, nil)
	first, stop := publish(t, consul.address, "/a")
	slow := target("slow")
	slow.Provider = "slow"
	first.Set([]Target{target("a"), target("stale"), slow}, nil)
	all := map[string]string{
		"a": "passing Reachable", "stale": "passing Reachable", "slow": "passing Reachable", "theirs": "passing Reachable",
	}
	consul.eventually("all are there", consul.showsTargets(all))
	_, before := consul.targets()
	stop()
	var beats atomic.Int32
	forward := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: consul.address})
	between := newFakeConsul(t, func(w http.ResponseWriter, r *http.Request) {
		forward.ServeHTTP(w, r)
		if strings.Contains(r.URL.Path, "/check/update/") {
			beats.Add(1)
		}
	})
	second, _ := publish(t, between.URL, "/a")
	second.Set([]Target{target("a")}, []string{"slow"})
	delete(all, "stale")
	consul.eventually("the stale one is gone", consul.showsTargets(all))
	if beats.Load() == 0 {
		t.Error("the check was not told")
	}
	_, after := consul.targets()
	for name := range all {
		if before[name].Service.ModifyIndex != after[name].Service.ModifyIndex {
			t.Errorf("%s was written again", name)
		}
	}
	second.Set([]Target{target("a")}, nil)
	delete(all, "slow")
	consul.eventually("the slow provider has told that it has no target", consul.showsTargets(all))
}

func TestTargetsComeBackAfterConsulLostThem(t *testing.T) {
	consul := startConsul(t, "")
	targets, _ := publish(t, consul.address, "/a")
	targets.Set([]Target{target("a")}, nil)
	consul.eventually("the target is there", consul.showsTargets(map[string]string{"a": "passing Reachable"}))
	consul.stop()
	targets.Set([]Target{broken("a"), target("b")}, nil)
	consul.start()
	consul.eventually("both are there", consul.showsTargets(map[string]string{
		"a": "warning PoolNotActive", "b": "passing Reachable",
	}))
}

func TestARefusalOfTargetsIsToldOnce(t *testing.T) {
	log := new(logBuffer)
	refusing := newFakeConsul(t, func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "Permission denied", http.StatusForbidden)
	})
	targets, err := NewTargets(TargetConfig{Config: Config{Address: refusing.URL, Logger: log.logger()}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { targets.Run(ctx) })
	defer wg.Wait()
	defer cancel()
	targets.Set([]Target{target("a")}, nil)
	eventually(t, "it was tried again", func() bool { return refusing.saw("/register") >= 2 })
	const want = `the token needs service:write on \"egress-target\"`
	eventually(t, "the refusal is told", func() bool { return log.count(want) == 1 })
}

// A node may have a provider's odd facts: none keeps the target from being seen.
func TestOddFactsAreLeftOut(t *testing.T) {
	odd := target("a")
	odd.Facts = map[string]string{"node": "x", "a key": "x", "empty": "", "long": strings.Repeat("x", 600), "good": "1"}
	meta := odd.meta(TargetConfig{Config: Config{Node: "node-1"}})
	if meta["node"] != "node-1" || meta["good"] != "1" || len(meta) != 8 {
		t.Errorf("meta %v", meta)
	}
}
