package fingerprint

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/egress-proxies/egress/provider"
)

// round makes the reports of one provider "hv" from verdicts in short:
// "a Reachable".
func round(verdicts ...string) []report {
	r := report{name: "hv", kind: "kvm"}
	for _, text := range verdicts {
		target, reason, _ := strings.Cut(text, " ")
		r.verdicts = append(r.verdicts, provider.Verdict{
			Target: target, Reason: provider.Reason(reason), Ready: reason == string(provider.Reachable),
		})
	}
	return []report{r}
}

func TestAStandingFollowsTheVerdicts(t *testing.T) {
	for name, tc := range map[string]struct {
		verdicts []string
		want     string // the reason that is published after each round
	}{
		"refused is believed at once":          {[]string{"Reachable", "Unreachable"}, "Reachable Unreachable"},
		"ready is believed at once":            {[]string{"Unreachable", "Reachable"}, "Unreachable Reachable"},
		"one timeout is not believed":          {[]string{"Reachable", "Timeout", "Reachable"}, "Reachable Reachable Reachable"},
		"two timeouts are":                     {[]string{"Reachable", "Timeout", "Timeout"}, "Reachable Reachable Timeout"},
		"the first verdict always is":          {[]string{"Timeout"}, "Timeout"},
		"timeouts apart are not":               {[]string{"Reachable", "Timeout", "Reachable", "Timeout"}, "Reachable Reachable Reachable Reachable"},
		"another reason is, the second time":   {[]string{"Unreachable", "Unauthorized", "Unauthorized"}, "Unreachable Unreachable Unauthorized"},
		"alternating reasons change nothing":   {[]string{"Unreachable", "Timeout", "Unreachable", "Timeout"}, "Unreachable Unreachable Unreachable Unreachable"},
		"a doubt about two reasons starts new": {[]string{"Unreachable", "Timeout", "Forbidden"}, "Unreachable Unreachable Unreachable"},
		"a pool at its limit stays off":        {[]string{"PoolNearlyFull", "Reachable", "PoolNearlyFull", "Reachable", "Reachable"}, "PoolNearlyFull PoolNearlyFull PoolNearlyFull PoolNearlyFull PoolNearlyFull"},
		"so does a quota at its limit":         {[]string{"QuotaExhausted", "Reachable", "Reachable", "QuotaExhausted"}, "QuotaExhausted QuotaExhausted QuotaExhausted QuotaExhausted"},
		"a pool with room again comes back":    {[]string{"PoolNearlyFull", "Reachable", "Reachable", "Reachable"}, "PoolNearlyFull PoolNearlyFull PoolNearlyFull Reachable"},
	} {
		b := newBoard()
		var got []string
		for _, verdict := range tc.verdicts {
			b.take(round("a " + verdict))
			got = append(got, b.result().Attributes["driver.egress.hv.a.reason"])
		}
		if diff := cmp.Diff(tc.want, strings.Join(got, " ")); diff != "" {
			t.Errorf("%s: (-want +got)\n%s", name, diff)
		}
	}
}

func TestTransitionsAreToldOnce(t *testing.T) {
	b := newBoard()
	var got []string
	for _, verdict := range []string{
		"Reachable", "Reachable", "Unreachable", "Unreachable", "Forbidden", "Forbidden", "Forbidden", "Reachable", "Reachable",
	} {
		told := ""
		for _, change := range b.take(round("a " + verdict)) {
			told += string(change.reason)
		}
		got = append(got, told)
	}
	want := []string{"", "", "Unreachable", "", "", "Forbidden", "", "Reachable", ""}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func TestHealth(t *testing.T) {
	for name, tc := range map[string]struct {
		reports []report
		health  Health
		want    string
	}{
		"nothing is configured": {nil, Undetected, "no provider is configured"},
		"a provider without targets": {
			round(), Unhealthy, "no provider has a target",
		},
		"all are down": {
			round("a Unreachable", "b PoolNotActive"), Unhealthy,
			"no target is ready: hv/a (Unreachable), hv/b (PoolNotActive)",
		},
		"one is ready": {
			round("a Reachable", "b Unreachable"), Healthy,
			"1 of 2 targets ready; not ready: hv/b (Unreachable)",
		},
		"all are ready": {round("a Reachable", "b Reachable"), Healthy, "Healthy"},
		"no answer yet": {
			append(round("a Reachable"), report{
				name: "x", kind: "gcp", pending: true, early: true,
				verdicts: []provider.Verdict{{Target: unknown, Reason: provider.Timeout}},
			}),
			Healthy, "1 of 1 targets ready; not ready: x (Timeout)",
		},
		"many are down": {
			round("a Reachable", "b Timeout", "c Timeout", "d Timeout", "e Timeout", "f Timeout", "g Timeout",
				"h Timeout", "i Timeout", "j Timeout", "k Timeout", "l Timeout", "m Timeout"),
			Healthy, "1 of 13 targets ready; not ready: hv/b (Timeout), hv/c (Timeout), hv/d (Timeout), hv/e (Timeout)," +
				" hv/f (Timeout), hv/g (Timeout), hv/h (Timeout), hv/i (Timeout), hv/j (Timeout), hv/k (Timeout), and 2 more",
		},
	} {
		b := newBoard()
		b.take(tc.reports)
		got := b.result()
		if got.Health != tc.health || got.Description != tc.want {
			t.Errorf("%s: %s: %q, want %s: %q", name, got.Health, got.Description, tc.health, tc.want)
		}
	}
}

func TestAttributes(t *testing.T) {
	reports := round("a Reachable", "b PoolNearlyFull", "c Reachable")
	reports[0].verdicts[0].Facts = map[string]string{
		"libvirt_version": "9.0.0", "pool_capacity_gib": "937", "pool_available_gib": "437", "memory_available_mib": "15873",
		"pool_state": "running", "hostname": "hv\n1", "empty": "",
	}
	reports[0].verdicts[1].Facts = map[string]string{"pool_available_bytes": "4831838208", "something_new": "12345"}
	reports[0].verdicts[2].Facts = map[string]string{"pool_available_gib": "94", "memory_available_mib": "16384"}
	b := newBoard()
	b.take(reports)
	want := map[string]string{
		"driver.egress.hv.type":                   "kvm",
		"driver.egress.hv.ready":                  "true",
		"driver.egress.hv.targets":                "3",
		"driver.egress.hv.targets_ready":          "2",
		"driver.egress.hv.pool_available_gib":     "400",
		"driver.egress.hv.memory_available_mib":   "15000",
		"driver.egress.hv.a.ready":                "true",
		"driver.egress.hv.a.reason":               "Reachable",
		"driver.egress.hv.a.libvirt_version":      "9.0.0",
		"driver.egress.hv.a.hostname":             "hv1",
		"driver.egress.hv.a.pool_state":           "running",
		"driver.egress.hv.a.pool_capacity_gib":    "937",
		"driver.egress.hv.a.pool_available_gib":   "400",
		"driver.egress.hv.a.memory_available_mib": "15000",
		"driver.egress.hv.b.ready":                "false",
		"driver.egress.hv.b.reason":               "PoolNearlyFull",
		"driver.egress.hv.b.pool_available_gib":   "4",
		"driver.egress.hv.b.something_new":        "10000",
		"driver.egress.hv.c.ready":                "true",
		"driver.egress.hv.c.reason":               "Reachable",
		"driver.egress.hv.c.pool_available_gib":   "90",
		"driver.egress.hv.c.memory_available_mib": "15000",
	}
	if diff := cmp.Diff(want, b.result().Attributes); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func TestWhatIsGoneIsRetracted(t *testing.T) {
	b := newBoard()
	reports := round("a Reachable", "b Reachable")
	reports[0].verdicts[0].Facts = map[string]string{"pool_available_gib": "40"}
	b.take(reports)
	before := b.result()
	b.take(round("a Unreachable"))
	told, changed := b.result().since(before)
	if !changed {
		t.Fatal("a target is gone and one is down, and nothing is told")
	}
	for _, key := range []string{"hv.a.pool_available_gib", "hv.b.ready", "hv.b.reason"} {
		if value, ok := told.Attributes["driver.egress."+key]; !ok || value != "" {
			t.Errorf("%s = %q, %v, want it retracted by an empty value", key, value, ok)
		}
	}
	if got := told.Attributes["driver.egress.hv.a.ready"]; got != "false" {
		t.Errorf("hv.a.ready = %q, want false", got)
	}
	if again, changed := b.result().since(b.result()); changed {
		t.Errorf("told again: %v", again)
	}
}
