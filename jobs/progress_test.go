package jobs

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/nomad/api"
)

// serviceJob is version 1 of a job of two proxies.
func serviceJob(kind string) *api.Job {
	return &api.Job{
		ID: ptr("proxies"), Type: ptr(kind), Version: ptr(uint64(1)),
		TaskGroups: []*api.TaskGroup{{Name: ptr("proxy"), Count: ptr(2)}},
	}
}

// alloc is an allocation of version 1; healthy may be nil.
func alloc(id, status string, healthy *bool, events ...*api.TaskEvent) *api.AllocationListStub {
	a := &api.AllocationListStub{
		ID: id, Name: "proxies.proxy[0]", NodeName: "n1", JobVersion: 1, DesiredStatus: "run", ClientStatus: status,
		TaskStates: map[string]*api.TaskState{"proxy": {Events: events}}, ModifyTime: 1000,
	}
	if healthy != nil {
		a.DeploymentStatus = &api.AllocDeploymentStatus{Healthy: healthy}
	}
	return a
}

func event(at int64, kind, text string) *api.TaskEvent {
	return &api.TaskEvent{Time: at, Type: kind, DisplayMessage: text}
}

func deployment(status string, placed, healthy int) *api.Deployment {
	return &api.Deployment{
		ID: "d", Status: status, StatusDescription: "says Nomad",
		TaskGroups: map[string]*api.DeploymentState{"proxy": {DesiredTotal: 2, PlacedAllocs: placed, HealthyAllocs: healthy}},
	}
}

var noRoom = map[string]*api.AllocationMetric{"proxy": {}}

func TestOutcome(t *testing.T) {
	for name, tc := range map[string]struct {
		kind string
		seen snapshot
		want Outcome // empty: it goes on
	}{
		"deployment failed":           {"service", snapshot{deployment: deployment("failed", 2, 1)}, Failed},
		"overtaken by another":        {"service", snapshot{deployment: deployment("cancelled", 2, 1)}, Failed},
		"deployment runs":             {"service", snapshot{deployment: deployment("running", 2, 1)}, ""},
		"deployment succeeded":        {"service", snapshot{deployment: deployment("successful", 2, 2)}, Healthy},
		"one still starts, one waits": {"service", snapshot{deployment: deployment("running", 1, 0), unplaced: noRoom, allocs: []*api.AllocationListStub{alloc("a", "pending", nil)}}, ""},
		"one is unproven, one waits":  {"service", snapshot{deployment: deployment("running", 1, 0), unplaced: noRoom, allocs: []*api.AllocationListStub{alloc("a", "running", nil)}}, ""},
		"one is healthy, one waits":   {"service", snapshot{deployment: deployment("running", 1, 1), unplaced: noRoom, allocs: []*api.AllocationListStub{alloc("a", "running", ptr(true))}}, Unplaced},
		"all wait":                    {"service", snapshot{deployment: deployment("running", 0, 0), unplaced: noRoom}, Unplaced},
		"nothing had to change":       {"service", snapshot{allocs: []*api.AllocationListStub{alloc("a", "running", nil), alloc("b", "running", nil)}}, Healthy},
		"one is missing":              {"service", snapshot{allocs: []*api.AllocationListStub{alloc("a", "running", nil)}}, ""},
		"system job starts":           {"system", snapshot{allocs: []*api.AllocationListStub{alloc("a", "pending", nil)}}, ""},
		"system job runs":             {"system", snapshot{allocs: []*api.AllocationListStub{alloc("a", "running", nil)}}, Healthy},
		"system job failed":           {"system", snapshot{allocs: []*api.AllocationListStub{alloc("a", "running", nil), alloc("b", "failed", nil)}}, Failed},
		"system job has no node":      {"system", snapshot{unplaced: noRoom}, Unplaced},
		"batch job runs":              {"sysbatch", snapshot{allocs: []*api.AllocationListStub{alloc("a", "running", nil)}}, ""},
		"batch job is done":           {"sysbatch", snapshot{allocs: []*api.AllocationListStub{alloc("a", "complete", nil)}}, Healthy},
	} {
		p := newProgress(serviceJob(tc.kind), &api.Evaluation{})
		start := time.Unix(100, 0)
		report, done := p.outcome(tc.seen, start)
		if done && report.Outcome == Unplaced {
			t.Errorf("%s: given up at once", name)
		}
		if !done {
			report, done = p.outcome(tc.seen, start.Add(placementPatience))
		}
		if done != (tc.want != "") || done && report.Outcome != tc.want {
			t.Errorf("%s: %q, done %v, want %q", name, report.Outcome, done, tc.want)
		}
	}
}

func TestCanariesThatAPersonPromotesEndTheFollowing(t *testing.T) {
	canaries := deployment("running", 1, 1)
	canaries.TaskGroups["proxy"].DesiredCanaries = 1
	p := newProgress(serviceJob("service"), &api.Evaluation{})
	report, done := p.outcome(snapshot{deployment: canaries}, time.Now())
	if !done || report.Outcome != AwaitsPromotion || !strings.Contains(report.Message, "nomad deployment promote d") {
		t.Errorf("%+v, done %v", report, done)
	}
	p.job.TaskGroups[0].Update = &api.UpdateStrategy{AutoPromote: ptr(true)}
	if report, done := p.outcome(snapshot{deployment: canaries}, time.Now()); done {
		t.Errorf("Nomad promotes by itself: %+v", report)
	}
}

func TestEachEventIsToldOnceAndOldOnesNever(t *testing.T) {
	p := newProgress(serviceJob("service"), &api.Evaluation{CreateTime: 100})
	old := alloc("old", "running", nil, event(200, api.TaskStarted, "x"))
	old.JobVersion = 0
	first := alloc("a", "pending", nil,
		event(50, api.TaskTerminated, "before this submission"),
		event(110, api.TaskReceived, "noise"),
		event(120, api.TaskDriverMessage, "fetching image debian-12: 43%"))
	told := func(seen ...*api.AllocationListStub) []string {
		var lines []string
		for _, event := range p.events(snapshot{allocs: seen}) {
			lines = append(lines, event.Alloc+" "+event.Task+" "+event.Message)
		}
		return lines
	}
	if diff := cmp.Diff([]string{"a proxy fetching image debian-12: 43%"}, told(old, first)); diff != "" {
		t.Errorf("first (-want +got)\n%s", diff)
	}
	if got := told(old, first); got != nil {
		t.Errorf("told again: %q", got)
	}
	events := append(first.TaskStates["proxy"].Events, event(130, api.TaskStarted, "Task started by client"))
	second := alloc("a", "running", ptr(true), events...)
	if diff := cmp.Diff([]string{"a proxy Started: Task started by client", "a  healthy"}, told(old, second)); diff != "" {
		t.Errorf("second (-want +got)\n%s", diff)
	}
	failed := alloc("a", "failed", ptr(false), events...)
	failed.ClientDescription = "Failed tasks"
	if diff := cmp.Diff([]string{"a  failed: Failed tasks"}, told(failed)); diff != "" {
		t.Errorf("third (-want +got)\n%s", diff)
	}
}
