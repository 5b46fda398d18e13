package jobs

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/nomad/api"
)

func ptr[T any](v T) *T { return &v }

// node is one that takes everything, with the given attributes.
func node(name string, attributes map[string]string) *api.Node {
	return &api.Node{
		Name: name, Status: api.NodeStatusReady, SchedulingEligibility: api.NodeSchedulingEligible,
		Attributes: attributes, Meta: map[string]string{"rack": "r1"},
		Drivers: map[string]*api.DriverInfo{"egress": {Detected: true, Healthy: true}},
	}
}

func TestRefusalsNameTheAttributeOnTheNode(t *testing.T) {
	job := &api.Job{
		Constraints: []*api.Constraint{{LTarget: "${attr.driver.egress.hv.a.ready}", Operand: "=", RTarget: "true"}},
		TaskGroups: []*api.TaskGroup{{
			Name: ptr("proxy"),
			Constraints: []*api.Constraint{
				{LTarget: "${attr.driver.egress.hv.a.pool_available_gib}", Operand: ">=", RTarget: "50"},
				{Operand: "distinct_hosts", RTarget: "true"},
			},
			Tasks: []*api.Task{{Driver: "egress"}},
		}},
	}
	const pool, ready = "driver.egress.hv.a.pool_available_gib", "driver.egress.hv.a.ready"
	sick := node("sick", map[string]string{ready: "false"})
	sick.Drivers["egress"] = &api.DriverInfo{Detected: true, HealthDescription: "no target is ready: hv/a (Unreachable)"}
	down := node("down", nil)
	down.Status = api.NodeStatusDown
	off := node("off", nil)
	off.SchedulingEligibility = api.NodeSchedulingIneligible
	bare := node("bare", map[string]string{ready: "true", pool: "400"})
	delete(bare.Drivers, "egress")
	got := refusals(job, []*api.Node{
		node("full", map[string]string{ready: "true", pool: "9"}),
		sick, down, off, bare,
		node("fine", map[string]string{ready: "true", pool: "400"}),
	}, map[string]*api.AllocationMetric{"proxy": {
		NodesEvaluated:     6,
		ConstraintFiltered: map[string]int{"${attr." + pool + "} >= 50": 1},
		DimensionExhausted: map[string]int{"memory": 1},
	}})
	want := []Refusal{{
		Group: "proxy",
		Nodes: []NodeRefusal{
			{"full", []string{`attr.driver.egress.hv.a.pool_available_gib is "9", want >= 50`}},
			{"sick", []string{
				"driver egress is not healthy: no target is ready: hv/a (Unreachable)",
				`attr.driver.egress.hv.a.ready is "false", want = true`,
				`attr.driver.egress.hv.a.pool_available_gib is not set, want >= 50`,
			}},
			{"down", []string{"the node is down"}},
			{"off", []string{"the node is not eligible: nomad node eligibility -enable"}},
			{"bare", []string{"driver egress is not there"}},
		},
		Others: []string{
			`constraint "${attr.driver.egress.hv.a.pool_available_gib} >= 50" refuses 1 node(s)`,
			"resources exhausted: memory on 1 node(s)",
		},
	}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func TestCompareAsTheSchedulerDoes(t *testing.T) {
	for _, tc := range []struct {
		left, operand, right string
		holds, known         bool
	}{
		{"40", ">=", "50", false, true},
		{"9", ">=", "10", false, true},
		{"9GiB", ">=", "10GiB", true, true}, // Text, for the scheduler too: hence bare numbers.
		{"0.5", "<", "0.50001", true, true},
		{"abc", "<", "abd", true, true},
		{"true", "=", "true", true, true},
		{"true", "!=", "true", false, true},
		{"a, b", "set_contains", "b,a", true, true},
		{"a, b", "set_contains", "b,c", false, true},
		{"a, b", "set_contains_any", "b,c", true, true},
		{"a, b", "set_contains_any", "c,d", false, true},
		{"9.0.0", "version", ">= 8.1", true, true},
		{"9.0.0", "version", "nonsense", false, false},
		{"hv-12", "regexp", "^hv-[0-9]+$", true, true},
		{"x", "distinct_property", "1", false, false},
	} {
		holds, known := compare(tc.operand, tc.left, true, tc.right, true)
		if holds != tc.holds || known != tc.known {
			t.Errorf("%q %s %q = %v, known %v, want %v, known %v",
				tc.left, tc.operand, tc.right, holds, known, tc.holds, tc.known)
		}
	}
	if holds, _ := compare(">=", "", false, "0", true); holds {
		t.Error("an attribute that is not set is >= 0")
	}
	if holds, _ := compare("is_not_set", "", false, "", true); !holds {
		t.Error("an attribute that is not set is set")
	}
}
