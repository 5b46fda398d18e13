package kube

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"

	"github.com/egress-proxies/egress/provider"
	"github.com/egress-proxies/egress/provider/providertest"
)

func TestMain(m *testing.M) {
	// client-go's web socket notices at its next ping, every 5 s, that it ended.
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("k8s.io/client-go/tools/remotecommand.(*heartbeat).start"))
}

// e2e/kubernetes runs the same suite against the real API server.
func TestContract(t *testing.T) {
	a := newAPIServer(t)
	spoilt := func(name string, class error, faults ...fault) providertest.Fault {
		return providertest.Fault{Name: name, Class: class, Provider: func(t *testing.T) provider.Provider {
			t.Cleanup(a.mend)
			var options map[string]any
			for _, f := range faults {
				a.spoil(f)
				if f.stall || f.retry != "" {
					options = map[string]any{"call_timeout": "1s"}
				}
			}
			return a.provider(t, options, quick)
		}}
	}
	providertest.Run(t, providertest.Harness{
		New: func(t *testing.T, cluster string) provider.Provider {
			p := a.provider(t, nil, quick)
			p.env.Cluster = cluster
			return p
		},
		Spec: func(*testing.T) provider.Spec { return provider.Spec{Port: 3128} },
		End: func(_ *testing.T, instance provider.Instance) {
			a.change(instance.Name, func(pod *corev1.Pod) { pod.Status = terminated(1, "Error") })
		},
		Count: func(*testing.T, string) int { return a.left() },
		Partials: []providertest.Partial{{Name: "PodWithoutSecret", Make: func(t *testing.T, spec provider.Spec) {
			p := a.provider(t, nil, quick)
			if _, err := p.createPod(t.Context(), spec); err != nil {
				t.Fatal(err)
			}
		}}},
		Faults: []providertest.Fault{
			spoilt("Unauthorized", provider.ErrPermanent, fault{status: 401, call: "create pods"}),
			spoilt("Forbidden", provider.ErrPermanent, fault{status: 403, call: "create pods"}),
			spoilt("ForbiddenSecret", provider.ErrPermanent, fault{status: 403, call: "create secrets"}),
			spoilt("Quota", provider.ErrQuotaExceeded, fault{status: 403, call: "create pods", message: "exceeded quota: q, requested: pods=1"}),
			spoilt("PodSecurity", provider.ErrPermanent, fault{status: 403, call: "create pods", message: `violates PodSecurity "restricted:latest"`}),
			spoilt("NamespaceEnds", provider.ErrTransient, fault{status: 403, call: "create pods", message: "because it is being terminated"}),
			spoilt("NamespaceMissing", provider.ErrPermanent, fault{status: 404, call: "create pods"}),
			spoilt("Conflict", provider.ErrTransient, fault{status: 409, call: "create pods"}),
			spoilt("Invalid", provider.ErrPermanent, fault{status: 422, call: "create pods"}),
			spoilt("Throttled", provider.ErrTransient, fault{status: 429, call: "create pods"}),
			spoilt("ThrottledForLong", provider.ErrTransient, fault{status: 429, call: "create pods", retry: "3600"}),
			spoilt("ServerFails", provider.ErrTransient, fault{status: 500, call: "create pods"}),
			spoilt("AnswerLost", provider.ErrTransient, fault{call: "create pods", after: true, cut: true}),
			spoilt("AnswerTruncated", provider.ErrTransient, fault{call: "create pods", after: true, body: `{"kind":"Pod","apiVersion":"v1","meta`}),
			spoilt("Stalled", provider.ErrTransient, fault{call: "create pods", stall: true}),
			spoilt("SecretStalled", provider.ErrTransient, fault{call: "create secrets", stall: true}),
		},
	})
}

// terminated is the status of a pod whose container ended.
func terminated(code int32, reason string) corev1.PodStatus {
	return corev1.PodStatus{Phase: corev1.PodFailed, ContainerStatuses: []corev1.ContainerStatus{{
		Name: container, State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: code, Reason: reason}},
	}}}
}

// spec is a proxy of the test.
func spec(t *testing.T) provider.Spec {
	name := provider.Name("contract", "a1b2c3d4", t.Name())
	return provider.Spec{Name: name, Port: 3128, Labels: provider.Labels{Cluster: "contract", Alloc: "a1b2c3d4", CreatedAt: created}}
}

func mustCreate(t *testing.T, p *Provider) provider.Instance {
	t.Helper()
	instance, err := p.Create(t.Context(), spec(t))
	if err != nil {
		t.Fatal(err)
	}
	return instance
}

func TestThrottledForASecond(t *testing.T) {
	a := newAPIServer(t)
	a.spoil(fault{call: "create pods", status: 429, retry: "1", times: 1})
	if got := mustCreate(t, a.provider(t, nil, quick)); got.State != provider.Running {
		t.Errorf("%+v, want it running", got)
	}
}

func TestSomebodyElsesPod(t *testing.T) {
	a := newAPIServer(t)
	p := a.provider(t, nil, quick)
	mustCreate(t, p)
	name := spec(t).Name
	a.change(name, func(pod *corev1.Pod) { pod.Annotations[provider.LabelCluster] = "other" })
	_, createErr := p.Create(t.Context(), spec(t))
	_, getErr := a.provider(t, nil, quick).Get(t.Context(), provider.Ref{Name: name})
	for call, err := range map[string]error{
		"create": createErr, "get": getErr,
		"stop":   p.Stop(t.Context(), provider.Ref{Name: name}, ""),
		"delete": p.Delete(t.Context(), provider.Ref{Name: name}),
	} {
		if provider.Classify(err) != provider.ErrPermanent || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v, want ErrPermanent that names the pod", call, err)
		}
	}
	if a.left() != 2 {
		t.Errorf("%d things are left of the other's, want pod and secret", a.left())
	}
}

func TestDeleteOfASilentNodeIsBounded(t *testing.T) {
	a := newAPIServer(t)
	p := a.provider(t, map[string]any{"delete_timeout": "1s"}, quick)
	ref := mustCreate(t, p).Ref
	a.silent = true
	if err := p.Stop(t.Context(), ref, ""); err != nil {
		t.Fatal(err)
	}
	if got, err := p.Get(t.Context(), ref); err != nil || got.State != provider.Stopping {
		t.Errorf("%v, %v after the stop, want stopping", got.State, err)
	}
	if err := p.Delete(t.Context(), ref); err != nil || a.left() != 0 {
		t.Errorf("%v, %d things left, want none", err, a.left())
	}
}

func TestCancelledCallReturns(t *testing.T) {
	a := newAPIServer(t)
	p := a.provider(t, nil, quick)
	p.timing.cleanup = time.Second // a start that was cancelled tidies up
	ref := mustCreate(t, p).Ref
	a.spoil(fault{stall: true})
	defer a.mend()
	for name, call := range map[string]func(context.Context) error{
		"create":  func(ctx context.Context) error { _, err := p.Create(ctx, spec(t)); return err },
		"get":     func(ctx context.Context) error { _, err := p.Get(ctx, ref); return err },
		"list":    func(ctx context.Context) error { _, err := p.List(ctx); return err },
		"delete":  func(ctx context.Context) error { return p.Delete(ctx, ref) },
		"stop":    func(ctx context.Context) error { return p.Stop(ctx, ref, "") },
		"watch":   func(ctx context.Context) error { _, err := p.Watch(ctx, ref); return err },
		"console": func(ctx context.Context) error { _, err := p.Console(ctx, ref, 0); return err },
		"exec": func(ctx context.Context) error {
			_, err := p.Exec(ctx, ref, provider.ExecRequest{Command: []string{"cat"}})
			return err
		},
		"check": func(ctx context.Context) error {
			if verdict := p.Check(ctx)[0]; verdict.Reason != provider.Timeout {
				t.Errorf("the check says %s, want Timeout", verdict.Reason)
			}
			return errors.New("checked")
		},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		began := time.Now()
		if err := call(ctx); err == nil || time.Since(began) > 10*time.Second {
			t.Errorf("%s: %v after %s, want an error at once", name, err, time.Since(began))
		}
		cancel()
	}
}
