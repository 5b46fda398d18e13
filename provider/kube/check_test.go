package kube

import (
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/egress-proxies/egress/provider"
)

// quota is one with hard and used limits, as NAME=QUANTITY.
func quota(hard, used string) corev1.ResourceQuota {
	list := func(text string) corev1.ResourceList {
		all := corev1.ResourceList{}
		for _, pair := range strings.Fields(text) {
			name, value, _ := strings.Cut(pair, "=")
			all[corev1.ResourceName(name)] = resource.MustParse(value)
		}
		return all
	}
	q := corev1.ResourceQuota{Status: corev1.ResourceQuotaStatus{Hard: list(hard), Used: list(used)}}
	q.Name = "team"
	return q
}

func TestCheck(t *testing.T) {
	terminating := quota("pods=1", "pods=1")
	terminating.Spec.Scopes = []corev1.ResourceQuotaScope{corev1.ResourceQuotaScopeTerminating}
	for name, tc := range map[string]struct {
		world  func(*apiServer)
		reason provider.Reason
		says   string
		facts  map[string]string
	}{
		"credentials":  {func(a *apiServer) { a.spoil(fault{status: 401}) }, provider.Unauthorized, "", nil},
		"server fails": {func(a *apiServer) { a.spoil(fault{status: 500}) }, provider.APIError, "", nil},
		"no answer":    {func(a *apiServer) { a.spoil(fault{stall: true}) }, provider.Timeout, "", nil},
		"not Kubernetes": {func(a *apiServer) { a.spoil(fault{call: "get version", body: "<html>"}) }, provider.Unreachable,
			"doesn't answer", nil},
		"server is away": {func(a *apiServer) { a.Close() }, provider.Unreachable, "", nil},
		"rights": {func(a *apiServer) { a.denied = []string{"watch pods", "get pods/log", "create secrets"} }, provider.Forbidden,
			"watch pods, get pods/log, create secrets", nil},
		"quota used up": {func(a *apiServer) {
			a.quotas = []corev1.ResourceQuota{quota("pods=10 requests.memory=1Gi", "pods=10 requests.memory=512Mi")}
		}, provider.QuotaExhausted, "quota team: no pods left of 10", map[string]string{"instances_free": "0", "memory_available_bytes": "536870912"}},
		"quota of others": {func(a *apiServer) { a.quotas = []corev1.ResourceQuota{terminating} }, provider.Reachable, "", map[string]string{}},
		"half a processor left": {func(a *apiServer) {
			a.quotas = []corev1.ResourceQuota{quota("cpu=2", "cpu=1500m"), quota("requests.cpu=8 count/pods=50", "requests.cpu=1 count/pods=8")}
		}, provider.Reachable, "", map[string]string{"cpus_free": "0", "instances_free": "42"}},
		"quotas can't be read": {func(a *apiServer) { a.spoil(fault{call: "list resourcequotas", status: 403}) }, provider.Reachable, "can't be read", map[string]string{}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := newAPIServer(t)
			tc.world(a)
			options := map[string]any{"namespace": "proxies"}
			if tc.reason == provider.Timeout {
				options["call_timeout"] = "1s"
			}
			p := a.provider(t, options, quick)
			verdict := p.Check(t.Context())[0]
			if verdict.Reason != tc.reason || verdict.Ready != (tc.reason == provider.Reachable) || !strings.Contains(verdict.Message, tc.says) {
				t.Errorf("%+v, want %s with %q", verdict, tc.reason, tc.says)
			}
			if verdict.Target != "proxies" || verdict.Message == "" {
				t.Errorf("%+v, want the namespace and a message", verdict)
			}
			if tc.facts != nil {
				tc.facts["kubernetes_version"] = "1.35.4"
				if !maps.Equal(verdict.Facts, tc.facts) {
					t.Errorf("facts %v, want %v", verdict.Facts, tc.facts)
				}
			}
		})
	}
}

func TestStatsAreOneCallForAll(t *testing.T) {
	a := newAPIServer(t)
	timing := quick
	timing.stats = 0
	p := a.provider(t, nil, timing)
	ref := provider.Ref{Name: spec(t).Name}
	reading := func(at, cpu, memory string) {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.metrics = `{"items":[{"metadata":{"name":"` + ref.Name + `"},"timestamp":"` + at + `",
			"containers":[{"usage":{"cpu":"` + cpu + `","memory":"` + memory + `"}}]}]}`
	}
	if _, err := p.Stats(t.Context(), ref); provider.Classify(err) != provider.ErrNotFound {
		t.Errorf("%v, want ErrNotFound of a cluster without the metrics API", err)
	}
	reading("2026-11-30T08:00:00Z", "100m", "10Mi")
	first, err := p.Stats(t.Context(), ref)
	if err != nil || first.MemoryBytes != 10<<20 {
		t.Fatalf("%+v, %v, want 10 MiB", first, err)
	}
	reading("2026-11-30T08:00:30Z", "500m", "20Mi")
	second, err := p.Stats(t.Context(), ref)
	if err != nil || second.CPUTime-first.CPUTime != 15*time.Second || second.At.Sub(first.At) != 30*time.Second || second.MemoryBytes != 20<<20 {
		t.Errorf("%+v after %+v, %v, want half a processor for 30s and 20 MiB", second, first, err)
	}
	if _, err := p.Stats(t.Context(), provider.Ref{Name: "eg-other"}); provider.Classify(err) != provider.ErrNotFound {
		t.Errorf("%v, want ErrNotFound of a pod that wasn't measured", err)
	}

	p = a.provider(t, nil, quick)
	a.counts()
	for range 50 {
		_, _ = p.Stats(t.Context(), ref)
		_, _ = p.Stats(t.Context(), provider.Ref{Name: "eg-other"})
	}
	if counts := a.counts(); counts["list metrics"] != 1 {
		t.Errorf("%v for 100 readings, want one list", counts)
	}
	a.spoil(fault{call: "list metrics", status: 403})
	p = a.provider(t, nil, quick)
	for range 50 {
		_, _ = p.Stats(t.Context(), ref)
	}
	if counts := a.counts(); counts["list metrics"] != 1 {
		t.Errorf("%v for 50 refused readings, want one", counts)
	}
}

// The figures of docs/kubernetes.md, "Calls".
func TestCallsOfATask(t *testing.T) {
	a := newAPIServer(t)
	p := a.provider(t, nil, quick)
	instance := mustCreate(t, p)
	expectCalls(t, "first start", a, map[string]int{"list pods": 1, "watch pods": 1, "create pods": 1, "create secrets": 1})
	mustWatch(t, p, instance.Ref)
	awaitWatch(t, p, instance.Name)
	a.counts()

	another := spec(t)
	another.Name = provider.Name("contract", "b2b2b2b2", t.Name())
	second, err := p.Create(t.Context(), another)
	if err != nil {
		t.Fatal(err)
	}
	more := mustWatch(t, p, second.Ref)
	expectCalls(t, "a start beside it", a, map[string]int{"create pods": 1, "create secrets": 1, "get pods": 1})
	awaitWatch(t, p, second.Name)
	for range 100 {
		if _, err := p.Get(t.Context(), second.Ref); err != nil {
			t.Fatal(err)
		}
	}
	expectCalls(t, "a hundred looks", a, map[string]int{})

	if err := p.Stop(t.Context(), second.Ref, ""); err != nil {
		t.Fatal(err)
	}
	for now := next(t, more); now.State != provider.Stopped; now = next(t, more) {
	}
	if err := p.Delete(t.Context(), second.Ref); err != nil {
		t.Fatal(err)
	}
	expectCalls(t, "stop and delete", a, map[string]int{"get pods": 2, "delete pods": 1, "delete secrets": 1})
}

// awaitWatch waits until Get needs no call.
func awaitWatch(t *testing.T, p *Provider, name string) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		if _, ok := p.hub.current(name); ok {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("there is no watch after 30s")
		}
	}
}

func TestCallsOfAnIdleHour(t *testing.T) {
	a := newAPIServer(t)
	timing := quick
	timing.watch, timing.rewatch = time.Second, 10*time.Millisecond
	p := a.provider(t, nil, timing)
	instance := mustCreate(t, p)
	mustWatch(t, p, instance.Ref)
	awaitWatch(t, p, instance.Name)
	a.counts()
	// Two watches stand for the six of an hour.
	for began, watches := time.Now(), 0; watches < 2; {
		counts := a.counts()
		watches += counts["watch pods"]
		delete(counts, "watch pods")
		if len(counts) > 0 || time.Since(began) > 30*time.Second {
			t.Fatalf("%d watches and %v, want watches alone", watches, counts)
		}
		time.Sleep(10 * time.Millisecond)
	}
	if watches := time.Hour / defaultTiming.watch; watches != 6 {
		t.Errorf("%d watches an hour, the docs say 6", watches)
	}
	if lists := time.Hour / defaultTiming.stats; lists != 120 {
		t.Errorf("%d lists of the metrics an hour, the docs say 120", lists)
	}

	p.Check(t.Context())
	expectCalls(t, "a check", a, map[string]int{"get version": 1, "list resourcequotas": 1, "create selfsubjectaccessreviews": len(rights)})
	p.Check(t.Context())
	p.checks.at = time.Time{}
	expectCalls(t, "a check soon after", a, map[string]int{})
	p.Check(t.Context())
	expectCalls(t, "a check minutes later", a, map[string]int{"get version": 1, "list resourcequotas": 1})
}

func expectCalls(t *testing.T, doing string, a *apiServer, want map[string]int) {
	t.Helper()
	got := a.counts()
	delete(got, "watch pods") // opened by another goroutine, maybe later
	delete(want, "watch pods")
	if !maps.Equal(got, want) {
		t.Errorf("%s: calls %v, want %v", doing, got, want)
	}
}

func TestKubeconfig(t *testing.T) {
	a, b := newAPIServer(t), newAPIServer(t)
	file := filepath.Join(t.TempDir(), "kubeconfig")
	p := a.provider(t, map[string]any{"kubeconfig": file}, quick)
	if _, err := p.List(t.Context()); provider.Classify(err) != provider.ErrTransient || !strings.Contains(err.Error(), file) {
		t.Errorf("%v, want ErrTransient with the name of the missing file", err)
	}
	if err := os.WriteFile(file, []byte("clusters: 3"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := p.List(t.Context()); provider.Classify(err) != provider.ErrPermanent || !strings.Contains(err.Error(), file) {
		t.Errorf("%v, want ErrPermanent with the name of the file", err)
	}
	list := func(server *apiServer, what string) {
		t.Helper()
		if _, err := p.List(t.Context()); err != nil || server.counts()["list pods"] != 1 {
			t.Errorf("%s: %v, want the list of the right server", what, err)
		}
	}
	a.writeKubeconfig(t, file)
	list(a, "the file came")
	b.writeKubeconfig(t, file)
	later := time.Now().Add(time.Minute)
	if err := os.Chtimes(file, later, later); err != nil {
		t.Fatal(err)
	}
	list(b, "the file changed")
	if err := os.WriteFile(file, []byte("clus"), 0o600); err != nil {
		t.Fatal(err)
	}
	list(b, "the file is half written")
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	list(b, "the file is away for a moment")

	inPod := newProvider(t, nil)
	if _, err := inPod.List(t.Context()); provider.Classify(err) != provider.ErrPermanent || !strings.Contains(err.Error(), "kubeconfig") {
		t.Errorf("%v, want ErrPermanent that names the key", err)
	}
}
