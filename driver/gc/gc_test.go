package gc_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/egress-proxies/egress/driver/gc"
	"github.com/egress-proxies/egress/provider"
	"github.com/egress-proxies/egress/provider/fake"
)

var now = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

// nomad knows some allocations and nodes.
type nomad struct {
	live  map[string][]string // by namespace; a namespace that is not in it is forbidden
	nodes []string
	err   error
}

func (n nomad) LiveAllocs(_ context.Context, namespace string) (map[string]bool, error) {
	ids, ok := n.live[namespace]
	if !ok {
		return nil, errors.New("Permission denied")
	}
	return set(ids), nil
}

func (n nomad) Nodes(context.Context) (map[string]bool, error) { return set(n.nodes), n.err }

func set(ids []string) map[string]bool {
	found := make(map[string]bool)
	for _, id := range ids {
		found[id] = true
	}
	return found
}

// listed is a provider that lists what it is told.
type listed struct {
	provider.Provider
	instances []provider.Instance
	deleted   []string
	fails     error
}

func (l *listed) List(context.Context) ([]provider.Instance, error) { return l.instances, l.fails }

func (l *listed) Delete(_ context.Context, ref provider.Ref) error {
	l.deleted = append(l.deleted, ref.Name)
	return nil
}

func instance(change func(*provider.Instance)) provider.Instance {
	made := provider.Instance{
		Ref: provider.Ref{Name: "eg-x"}, State: provider.Running, CreatedAt: now.Add(-time.Hour),
		Labels: provider.Labels{Cluster: "prod", Namespace: "default", Alloc: "gone", Task: "proxy", Node: "node-1"},
	}
	if change != nil {
		change(&made)
	}
	return made
}

func options(l *listed) gc.Options {
	return gc.Options{
		Cluster: "prod", Providers: map[string]provider.Provider{"hv": l}, Now: func() time.Time { return now },
		Nomad: nomad{live: map[string][]string{"default": {"alive"}}, nodes: []string{"node-1"}},
	}
}

func TestOnlyWhatWasCheckedIsDeleted(t *testing.T) {
	tests := []struct {
		name   string
		change func(*provider.Instance)
		want   gc.Action
		why    string
	}{
		{"another cluster", func(i *provider.Instance) { i.Labels.Cluster = "test" }, gc.Skip, `cluster "test"`},
		{"no allocation", func(i *provider.Instance) { i.Labels.Alloc = "" }, gc.Skip, "labels"},
		{"no namespace", func(i *provider.Instance) { i.Labels.Namespace = "" }, gc.Skip, "labels"},
		{"forbidden namespace", func(i *provider.Instance) { i.Labels.Namespace = "secret" }, gc.Skip, `namespace "secret" could not be read`},
		{"alive", func(i *provider.Instance) { i.Labels.Alloc = "alive" }, gc.Keep, "lives"},
		{"no age", func(i *provider.Instance) { i.CreatedAt = time.Time{} }, gc.Skip, "age"},
		{"young", func(i *provider.Instance) { i.CreatedAt = now.Add(-time.Minute) }, gc.Keep, "1m0s old"},
		{"unknown node", func(i *provider.Instance) { i.Labels.Node = "node-9" }, gc.Skip, `node "node-9"`},
		{"age from the label", func(i *provider.Instance) {
			i.CreatedAt, i.Labels.CreatedAt = time.Time{}, now.Add(-time.Hour)
		}, gc.Deleted, "gone is over"},
		{"leftover piece", func(i *provider.Instance) { i.State = provider.Leftover }, gc.Deleted, "gone is over"},
		{"garbage", nil, gc.Deleted, "gone is over"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			l := &listed{instances: []provider.Instance{instance(test.change)}}
			finding := gc.Run(t.Context(), options(l)).Findings[0]
			if finding.Action != test.want || !strings.Contains(finding.Why, test.why) {
				t.Errorf("%s: %s, want %s: …%s…", finding.Action, finding.Why, test.want, test.why)
			}
			if deleted := len(l.deleted) == 1; deleted != (test.want == gc.Deleted) {
				t.Errorf("deleted %q", l.deleted)
			}
		})
	}
}

func TestDryRunDeletesNothing(t *testing.T) {
	l := &listed{instances: []provider.Instance{instance(nil)}}
	o := options(l)
	o.DryRun = true
	if result := gc.Run(t.Context(), o); result.Findings[0].Action != gc.Would || len(l.deleted) != 0 {
		t.Errorf("%+v, deleted %q", result.Findings, l.deleted)
	}
}

func TestUnknownNodesCanBeIncluded(t *testing.T) {
	l := &listed{instances: []provider.Instance{instance(func(i *provider.Instance) { i.Labels.Node = "node-9" })}}
	o := options(l)
	o.UnknownNodes = true
	if result := gc.Run(t.Context(), o); result.Findings[0].Action != gc.Deleted {
		t.Errorf("%+v", result.Findings)
	}
}

func TestWhatCannotBeAskedIsAProblemAndStays(t *testing.T) {
	l := &listed{instances: []provider.Instance{instance(nil)}}
	o := options(l)
	o.Nomad = nomad{live: map[string][]string{"default": nil}, err: errors.New("no leader")}
	result := gc.Run(t.Context(), o)
	if len(l.deleted) != 0 || len(result.Problems) != 1 || !strings.Contains(result.Problems[0].Error(), "nodes: no leader") {
		t.Errorf("deleted %q, problems %v", l.deleted, result.Problems)
	}
	broken := &listed{fails: errors.New("connection refused")}
	o = options(broken)
	if result := gc.Run(t.Context(), o); len(result.Problems) != 1 || !strings.Contains(result.Problems[0].Error(), `provider "hv"`) {
		t.Errorf("problems %v", result.Problems)
	}
}

func TestRealProviderLosesItsLeftovers(t *testing.T) {
	p := fake.New(fake.Options{Cluster: "prod"})
	p.Interrupt(fake.StepStart)
	spec := provider.Spec{Name: "eg-left", Labels: provider.Labels{Cluster: "prod", Namespace: "default", Alloc: "gone", Node: "node-1"}}
	if _, err := p.Create(t.Context(), spec); err == nil {
		t.Fatal("create was not interrupted")
	}
	o := options(&listed{})
	o.Providers = map[string]provider.Provider{"fake": p}
	o.Now = func() time.Time { return time.Now().Add(time.Hour) }
	gc.Run(t.Context(), o)
	if left := p.World().Pieces(); left != 0 {
		t.Errorf("%d pieces are left", left)
	}
}

// A Nomad that pages its answers, as real ones do.
func TestNomadIsReadToTheLastPage(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		query := r.URL.Query()
		if query.Get("namespace") != "stripped" {
			w.Header().Set("X-Nomad-Index", "7")
		}
		w.Header().Set("X-Nomad-LastContact", "0")
		switch {
		case r.Header.Get("X-Nomad-Token") != "sesame" || query.Get("namespace") == "secret":
			http.Error(w, "Permission denied", http.StatusForbidden)
		case r.URL.Path == "/v1/nodes":
			_, _ = fmt.Fprint(w, `[{"ID":"node-1"}]`)
		case query.Get("next_token") == "":
			w.Header().Set("X-Nomad-NextToken", "2")
			_ = json.NewEncoder(w).Encode([]map[string]string{{"ID": "a", "ClientStatus": "running"}, {"ID": "b", "ClientStatus": "lost"}})
		default:
			_ = json.NewEncoder(w).Encode([]map[string]string{
				{"ID": "c", "ClientStatus": "pending"}, {"ID": "d", "ClientStatus": "unknown"}, {"ID": "e", "ClientStatus": "complete"},
				{"ID": "f", "ClientStatus": "failed"}, {"ID": "g", "ClientStatus": "something new"},
			})
		}
	}))
	defer server.Close()
	client, err := gc.NewNomad(server.URL, "sesame")
	if err != nil {
		t.Fatal(err)
	}
	live, err := client.LiveAllocs(t.Context(), "default")
	if err != nil || len(live) != 4 || !live["a"] || !live["c"] || !live["d"] || !live["g"] {
		t.Errorf("live %v, %v, want a, c, d, g", live, err)
	}
	if _, err := client.LiveAllocs(t.Context(), "secret"); err == nil {
		t.Error("a forbidden namespace looks empty")
	}
	if _, err := client.LiveAllocs(t.Context(), "stripped"); err == nil {
		t.Error("a list whose end can't be told looks whole")
	}
	if nodes, err := client.Nodes(t.Context()); err != nil || !nodes["node-1"] {
		t.Errorf("nodes %v, %v", nodes, err)
	}
}
