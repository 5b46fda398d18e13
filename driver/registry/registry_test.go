package registry

import (
	"context"
	"net/http"
	"net/http/httputil"
	"net/netip"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/egress-proxies/egress/driver/probe"
	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/consul/api"
)

func works(exitIP string) probe.Verdict {
	verdict := probe.Verdict{OK: true, Message: probe.Works}
	if exitIP != "" {
		verdict.ExitIP = netip.MustParseAddr(exitIP)
	}
	return verdict
}

var fails = probe.Verdict{Stage: probe.StageAuth, Message: "auth: the proxy answered 407 to CONNECT a.example:443 without credentials"}

func endpoint(name string) Endpoint {
	return Endpoint{
		Name: name, Address: "192.0.2.1", Port: 3128, Tags: []string{"fast"}, Provider: "local", Namespace: "default",
		Job: "proxies", Group: "g", Alloc: "a1", Task: "proxy", MaxLeases: 2, Auth: "crawl",
		Attributes: map[string]string{"country": "DE"}, TTL: MinTTL,
	}
}

func TestEndpointFollowsItsVerdicts(t *testing.T) {
	consul := startConsul(t, "")
	r := newRegistry(t, Config{Address: consul.address})
	if err := r.Register(endpoint("eg-1"), works("2001:db8::1")); err != nil {
		t.Fatal(err)
	}
	consul.eventually("the endpoint passes", consul.isStatus("eg-1", api.HealthPassing))
	entry, _ := consul.entry("eg-1")
	if diff := cmp.Diff(map[string]string{
		"provider": "local", "node": "node-1", "cluster": "test", "namespace": "default", "job": "proxies", "group": "g", "alloc": "a1",
		"task": "proxy", "instance": "eg-1", "max_leases": "2", "exit_ip": "2001:db8::1", "scheme": "http", "auth": "crawl", "country": "DE",
	}, entry.Service.Meta); diff != "" {
		t.Errorf("meta: %s", diff)
	}
	if diff := cmp.Diff([]string{"egress", "ipv6", "fast"}, entry.Service.Tags); diff != "" {
		t.Errorf("tags: %s", diff)
	}
	r.Update("eg-1", fails)
	consul.eventually("the endpoint is critical", consul.isStatus("eg-1", api.HealthCritical))
	if _, check := consul.entry("eg-1"); check.Output != fails.Message {
		t.Errorf("output %q", check.Output)
	}
	r.Update("eg-1", works("192.0.2.7"))
	consul.eventually("the new exit address is published", func() bool {
		entry, check := consul.entry("eg-1")
		return check != nil && check.Status == api.HealthPassing && entry.Service.Meta["exit_ip"] == "192.0.2.7" && len(entry.Service.Tags) == 2
	})
}

// Case 18.
func TestLateVerdictBringsNothingBack(t *testing.T) {
	consul := startConsul(t, "")
	r := newRegistry(t, Config{Address: consul.address})
	if err := r.Register(endpoint("eg-1"), works("")); err != nil {
		t.Fatal(err)
	}
	consul.eventually("the endpoint passes", consul.isStatus("eg-1", api.HealthPassing))
	if err := r.Deregister(t.Context(), "eg-1"); err != nil {
		t.Fatal(err)
	}
	r.Update("eg-1", works(""))
	if r.owns("eg-1") {
		t.Error("a late verdict revived the endpoint")
	}
	services, err := consul.client.Agent().Services()
	if err != nil || len(services) != 0 {
		t.Errorf("services %v, error %v", services, err)
	}
	// The task is restarted under the same name: a new life.
	if err := r.Register(endpoint("eg-1"), works("")); err != nil {
		t.Fatal(err)
	}
	consul.eventually("the endpoint passes again", consul.isStatus("eg-1", api.HealthPassing))
}

// Case 19: neither an identical registration nor a new process that does not
// know the status yet changes anything in the catalog.
func TestRegisteringAgainChangesNothing(t *testing.T) {
	consul := startConsul(t, "")
	first := newRegistry(t, Config{Address: consul.address})
	if err := first.Register(endpoint("eg-1"), works("192.0.2.7")); err != nil {
		t.Fatal(err)
	}
	// Consul hands the output on with a change of the status, and otherwise
	// minutes later, which would count as a change here.
	consul.eventually("the endpoint passes", consul.isStatus("eg-1", api.HealthPassing))
	first.Update("eg-1", fails)
	consul.eventually("the endpoint fails", consul.isStatus("eg-1", api.HealthCritical))
	first.Update("eg-1", works("192.0.2.7"))
	consul.eventually("the endpoint passes again", consul.isStatus("eg-1", api.HealthPassing))
	before, check := consul.entry("eg-1")
	if err := first.Register(endpoint("eg-1"), works("192.0.2.7")); err != nil {
		t.Fatal(err)
	}
	if err := first.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	var answered atomic.Int32
	forward := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: consul.address})
	between := newFakeConsul(t, func(w http.ResponseWriter, r *http.Request) {
		forward.ServeHTTP(w, r)
		if strings.Contains(r.URL.Path, "/check/update/") {
			answered.Add(1)
		}
	})
	second := newRegistry(t, Config{Address: between.URL})
	if err := second.Register(endpoint("eg-1"), probe.Verdict{}); err != nil {
		t.Fatal(err)
	}
	consul.eventually("the new process has sent its first heartbeat", func() bool { return answered.Load() > 0 })
	// What the agent had to tell the servers about it, it has told by the time
	// that something later is there.
	if err := second.Register(endpoint("eg-2"), works("")); err != nil {
		t.Fatal(err)
	}
	consul.eventually("another endpoint passes", consul.isStatus("eg-2", api.HealthPassing))
	after, again := consul.entry("eg-1")
	if before.Service.ModifyIndex != after.Service.ModifyIndex || check.ModifyIndex != again.ModifyIndex {
		t.Errorf("the catalog changed: service %d to %d, check %d to %d (%s %q)", before.Service.ModifyIndex, after.Service.ModifyIndex,
			check.ModifyIndex, again.ModifyIndex, again.Status, again.Output)
	}
}

func TestUnknownStatusStartsCritical(t *testing.T) {
	consul := startConsul(t, "")
	r := newRegistry(t, Config{Address: consul.address})
	if err := r.Register(endpoint("eg-1"), probe.Verdict{}); err != nil {
		t.Fatal(err)
	}
	consul.eventually("the endpoint is there", consul.isStatus("eg-1", api.HealthCritical))
}

func TestConsulRestartedWithoutItsState(t *testing.T) {
	consul := startConsul(t, "")
	r := newRegistry(t, Config{Address: consul.address})
	for _, name := range []string{"eg-1", "eg-2"} {
		if err := r.Register(endpoint(name), works("")); err != nil {
			t.Fatal(err)
		}
		consul.eventually("the endpoint passes", consul.isStatus(name, api.HealthPassing))
	}
	consul.stop()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := r.Deregister(ctx, "eg-2"); err == nil {
		t.Error("deregistered while Consul is down")
	}
	consul.start()
	consul.eventually("the endpoint passes again", consul.isStatus("eg-1", api.HealthPassing))
	consul.eventually("the other one is done with", func() bool { return !r.owns("eg-2") })
	if entry, _ := consul.entry("eg-2"); entry != nil {
		t.Error("the deregistered endpoint is back")
	}
}

func TestReconcileRemovesOnlyOurStaleOnes(t *testing.T) {
	consul := startConsul(t, "")
	register := func(id string, meta map[string]string) {
		if err := consul.client.Agent().ServiceRegister(&api.AgentServiceRegistration{ID: id, Name: "s", Meta: meta}); err != nil {
			t.Fatal(err)
		}
	}
	register("egress-stale", map[string]string{"instance": "stale", "cluster": "test", "node": "node-1"})
	register("egress-recovering", map[string]string{"instance": "recovering", "cluster": "test", "node": "node-1"})
	register("egress-other-node", map[string]string{"instance": "other-node", "cluster": "test", "node": "node-2"})
	register("egress-other-cluster", map[string]string{"instance": "other-cluster", "cluster": "prod", "node": "node-1"})
	register("egress-lookalike", nil)
	register("web", map[string]string{"instance": "stale", "cluster": "test", "node": "node-1"})
	r := newRegistry(t, Config{Address: consul.address})
	if err := r.Register(endpoint("eg-1"), works("")); err != nil {
		t.Fatal(err)
	}
	consul.eventually("the endpoint passes", consul.isStatus("eg-1", api.HealthPassing))
	removed, err := r.Reconcile(t.Context(), "recovering")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"stale"}, removed); diff != "" {
		t.Error(diff)
	}
	consul.eventually("only the stale one is gone", func() bool {
		services, err := consul.client.Agent().Services()
		return err == nil && services["egress-stale"] == nil && len(services) == 6
	})
}

func TestRealRefusalNamesThePermission(t *testing.T) {
	consul := startConsul(t, `acl {
  enabled        = true
  default_policy = "deny"
  tokens { initial_management = "root" agent = "root" }
}`)
	log := new(logBuffer)
	refused := newRegistry(t, Config{Address: consul.address, Logger: log.logger()})
	if err := refused.Register(endpoint("eg-1"), works("")); err != nil {
		t.Fatal(err)
	}
	consul.eventually("the refusal is logged", func() bool { return log.count(`the token needs service:write on \"egress-proxy\"`) == 1 })
	allowed := newRegistry(t, Config{Address: consul.address, Token: "root"})
	if err := allowed.Register(endpoint("eg-1"), works("")); err != nil {
		t.Fatal(err)
	}
	consul.eventually("the endpoint passes", consul.isStatus("eg-1", api.HealthPassing))
}
