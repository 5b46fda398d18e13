package metrics_test

import (
	"errors"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/egress-proxies/egress/lease"
	"github.com/egress-proxies/egress/lease/metrics"
)

// scrape is /metrics of a service in which everything has happened.
func scrape(t *testing.T) string {
	t.Helper()
	m := metrics.New()
	s := lease.NewService(lease.Config{Observer: m})
	s.SetProxies([]*lease.Proxy{{ID: "a", Address: "10.0.0.1", Port: 1, MaxLeases: 1, Healthy: true, Attributes: map[string]string{"provider": "kvm"}}})
	resign, _ := s.Lead(nil, nil)
	t.Cleanup(resign)
	r, err := s.Rules().NewRequest(lease.Ask{Target: "x.example"})
	if err != nil {
		t.Fatal(err)
	}
	leases, err := s.Acquire(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Acquire(t.Context(), r); err == nil {
		t.Fatal("want a refusal")
	}
	if _, err := s.Report(t.Context(), leases[0].ID, lease.Blocked, ""); err != nil {
		t.Fatal(err)
	}
	m.Committed(3, time.Millisecond, nil)
	m.Committed(3, time.Millisecond, errors.New("down"))
	s.SetPlaces([]lease.Place{{ID: "n1/a", Provider: "hv", State: lease.PlaceSilent}})
	m.Watch(metrics.Source{Service: s, CatalogAge: func() time.Duration { return 5 * time.Second }})
	w := httptest.NewRecorder()
	m.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	return w.Body.String()
}

func TestFiguresAreRight(t *testing.T) {
	text := scrape(t)
	for _, want := range []string{
		`egress_lease_proxies{provider="kvm",state="at_capacity"} 1`,
		`egress_lease_slots 1`,
		`egress_lease_active 1`,
		`egress_lease_acquires_total{outcome="granted"} 1`,
		`egress_lease_acquires_total{outcome="refused"} 1`,
		`egress_lease_reports_total{result="blocked"} 1`,
		`egress_lease_cooldowns{scope="target"} 1`,
		`egress_lease_ends_total{reason="expired"} 0`,
		`egress_lease_commits_total{outcome="error"} 1`,
		`egress_lease_commit_changes_sum 3`,
		`egress_lease_leader 1`,
		`egress_lease_targets{provider="hv",state="silent"} 1`,
		`egress_lease_ready 1`,
		`egress_lease_catalog_age_seconds 5`,
	} {
		if !strings.Contains(text, want+"\n") {
			t.Errorf("no %s", want)
		}
	}
}

// Case 29.
func TestEveryMetricOfTheDocsExists(t *testing.T) {
	text := scrape(t)
	name := regexp.MustCompile(`egress_lease_[a-z_]+`)
	var all []string
	for _, file := range []string{"lease-dashboard.json", "lease-alerts.yaml", "operations.md"} {
		data, err := os.ReadFile(filepath.Join("..", "..", "docs", file))
		if err != nil {
			t.Fatal(err)
		}
		found := name.FindAllString(string(data), -1)
		if len(found) < 10 {
			t.Errorf("%s names only %d metrics", file, len(found))
		}
		for _, metric := range found {
			if !regexp.MustCompile(`(?m)^`+metric+`[ {]`).MatchString(text) && !strings.Contains(text, "# TYPE "+metric+" ") {
				t.Errorf("%s names %s, which does not exist", file, metric)
			}
		}
		all = append(all, found...)
	}
	for _, line := range strings.Split(text, "\n") {
		if metric, ok := strings.CutPrefix(line, "# TYPE egress"); ok {
			metric = "egress" + strings.Fields(metric)[0]
			if !slices.Contains(all, metric) {
				t.Errorf("%s is nowhere in the docs", metric)
			}
		}
	}
}
