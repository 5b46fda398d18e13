package http_test

import (
	"encoding/json"
	"net/http"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/egress-proxies/egress/lease"
	"github.com/egress-proxies/egress/lease/api"
	leasehttp "github.com/egress-proxies/egress/lease/http"
)

// places are a hypervisor that two nodes see differently, and a node.
func places() []lease.Place {
	return []lease.Place{
		{ID: "n2/hv-a", Provider: "hv", Type: "kvm", Name: "a", Node: "n2", State: lease.PlaceNotReady,
			Reason: "Unreachable", Advice: "see whether the target is up"},
		{ID: "n1/hv-a", Provider: "hv", Type: "kvm", Name: "a", Node: "n1", State: lease.PlaceReady, Reason: "Reachable",
			Facts: map[string]string{"pool_state": "running", "pool_capacity_gib": "1862", "pool_available_gib": "400", "memory_available_mib": "15000", "memory_total_mib": "64311"}},
		{ID: "n1/local", Provider: "local", Type: "process", Name: "local", Node: "n1", State: lease.PlaceReady, Reason: "Reachable",
			Facts: map[string]string{"state_dir_available_mib": "90000"}},
	}
}

func TestTargetsAreListed(t *testing.T) {
	b := newBench(t, leasehttp.Config{}, proxy("a"))
	if p := b.problem("GET", "/v1/targets", nil, 503, api.CodeNotReady); p.RetryAfterSeconds == 0 {
		t.Error("an unknown list does not say when to come back")
	}
	b.service.SetPlaces(places())
	response, body := b.call("GET", "/v1/targets?limit=2", nil)
	var page api.Targets
	if err := json.Unmarshal([]byte(body), &page); err != nil || len(page.Targets) != 2 || page.Next != "n1/local" {
		t.Fatalf("%s %s", response.Status, body)
	}
	if diff := cmp.Diff(api.Target{
		ID: "n1/hv-a", Provider: "hv", Target: "a", Type: "kvm", Node: "n1", State: "ready", Reason: "Reachable", Facts: places()[1].Facts,
	}, page.Targets[0]); diff != "" {
		t.Error(diff)
	}
	response, body = b.call("GET", "/v1/targets?after=n1%2Flocal", nil)
	var rest api.Targets
	if err := json.Unmarshal([]byte(body), &rest); err != nil || len(rest.Targets) != 1 || rest.Targets[0].State != "not_ready" {
		t.Fatalf("%s %s", response.Status, body)
	}
	tag := response.Header.Get("ETag")
	again := func() int {
		response, _ := b.call("GET", "/v1/targets?after=n1%2Flocal", nil, "If-None-Match", tag)
		return response.StatusCode
	}
	if code := again(); code != http.StatusNotModified {
		t.Errorf("an unchanged list: %d", code)
	}
	b.service.SetPlaces(places()[1:])
	if code := again(); code != http.StatusOK {
		t.Errorf("a changed list: %d", code)
	}
}
