package kube

import (
	"context"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/egress-proxies/egress/provider"
)

// next is the next state that a watch tells.
func next(t *testing.T, changes <-chan provider.Instance) provider.Instance {
	t.Helper()
	select {
	case instance, open := <-changes:
		if !open {
			t.Fatal("the watch ended")
		}
		return instance
	case <-time.After(30 * time.Second):
		t.Fatal("nothing was told within 30s")
	}
	return provider.Instance{}
}

func mustWatch(t *testing.T, p *Provider, ref provider.Ref) <-chan provider.Instance {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	changes, err := p.Watch(ctx, ref)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cancel()
		for range changes {
		}
	})
	if now := next(t, changes); now.State != provider.Running {
		t.Fatalf("the watch begins with %s, want running", now.State)
	}
	return changes
}

func evicted(pod *corev1.Pod) {
	pod.Status.Phase, pod.Status.Reason, pod.Status.Message = corev1.PodFailed, "Evicted", "the node was low on memory"
}

func TestWatchTellsTheEnd(t *testing.T) {
	for name, tc := range map[string]struct {
		ends func(*apiServer, string)
		says string
	}{
		"evicted": {func(a *apiServer, name string) { a.change(name, evicted) }, "evicted: the node was low on memory"},
		"out of memory": {func(a *apiServer, name string) {
			a.change(name, func(pod *corev1.Pod) { pod.Status = terminated(137, "OOMKilled") })
		}, "out of memory"},
		"node lost": {func(a *apiServer, name string) {
			a.change(name, func(pod *corev1.Pod) {
				pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: "DeletionByTaintManager", Message: "taint"}}
			})
		}, "node lost: node-1"},
		"deleted": {func(a *apiServer, name string) {
			a.mu.Lock()
			defer a.mu.Unlock()
			a.vanish(name)
		}, "deleted"},
		"deleted while no watch was": {func(a *apiServer, name string) {
			a.spoil(fault{call: "watch pods", status: 503, times: 1})
			a.closeWatches(true)
			a.mu.Lock()
			defer a.mu.Unlock()
			a.vanish(name)
			a.oldest = a.version
		}, "deleted"},
	} {
		t.Run(name, func(t *testing.T) {
			a := newAPIServer(t)
			p := a.provider(t, nil, quick)
			ref := mustCreate(t, p).Ref
			changes := mustWatch(t, p, ref)
			tc.ends(a, ref.Name)
			last := next(t, changes)
			for last.State != provider.Stopped {
				if last.State == provider.Unknown { // the caller watches again
					again, err := p.Watch(t.Context(), ref)
					if provider.Classify(err) == provider.ErrNotFound {
						return
					}
					changes = again
				}
				last = next(t, changes)
			}
			if !strings.Contains(last.Reason, tc.says) {
				t.Errorf("ended because %q, want %q", last.Reason, tc.says)
			}
			if _, open := <-changes; open {
				t.Error("something was told after the end")
			}
		})
	}
}

func TestWatchGoesOn(t *testing.T) {
	for name, interrupt := range map[string]func(*apiServer){
		"closed by the server": func(a *apiServer) { a.closeWatches(false) },
		"expired":              func(a *apiServer) { a.closeWatches(true) },
	} {
		t.Run(name, func(t *testing.T) {
			a := newAPIServer(t)
			p := a.provider(t, nil, quick)
			ref := mustCreate(t, p).Ref
			changes := mustWatch(t, p, ref)
			interrupt(a)
			a.change(ref.Name, evicted)
			if now := next(t, changes); now.State != provider.Stopped {
				t.Errorf("%s %q, want the eviction", now.State, now.Reason)
			}
		})
	}
}

func TestBrokenWatchIsUnknownAndNotAskedWithoutPause(t *testing.T) {
	a := newAPIServer(t)
	p := a.provider(t, nil, quick)
	ref := mustCreate(t, p).Ref
	changes := mustWatch(t, p, ref)
	a.spoil(fault{call: "watch pods", status: 500})
	a.spoil(fault{call: "list pods", status: 500})
	a.closeWatches(false)
	if now := next(t, changes); now.State != provider.Unknown || !strings.Contains(now.Reason, "watch") {
		t.Errorf("%s %q, want unknown with the reason", now.State, now.Reason)
	}
	if _, open := <-changes; open {
		t.Error("something was told after the watch broke")
	}
	if now, err := p.Get(t.Context(), ref); err != nil || now.State != provider.Running {
		t.Errorf("get: %v, %v, want the server's answer", now.State, err)
	}
	p.timing.again = time.Minute
	a.mend()
	changes = mustWatch(t, p, ref)
	a.change(ref.Name, evicted)
	if now := next(t, changes); now.State != provider.Stopped {
		t.Errorf("%s, want the watch back", now.State)
	}
}

// A server without working watches is not asked in a tight loop.
func TestWatchesThatEndAtOnceAreOpenedEverSlower(t *testing.T) {
	for name, f := range map[string]fault{
		"closed":  {call: "watch pods", body: " "},
		"expired": {call: "watch pods", status: 410},
		"refused": {call: "watch pods", status: 403},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := newAPIServer(t)
			timing := quick
			timing.longest = time.Hour
			timing.rewatch = 100 * time.Millisecond
			p := a.provider(t, nil, timing)
			a.put(p, spec(t))
			a.spoil(f)
			w, err := p.hub.add(spec(t).Name)
			if err != nil {
				t.Fatal(err)
			}
			defer p.hub.remove(w)
			began := time.Now()
			for watches := 0; watches < 4; time.Sleep(time.Millisecond) {
				watches += a.counts()["watch pods"]
				if time.Since(began) > 30*time.Second {
					t.Fatalf("%d watches in 30s, want four", watches)
				}
			}
			// 0.1, 0.2 and 0.4 seconds lie between them, or 0.3 in all at a steady pace.
			if took := time.Since(began); took < 700*time.Millisecond {
				t.Errorf("four watches within %s, want 700ms at least", took)
			}
		})
	}
}

// A watch that says nothing, not even that it ended, is given up.
func TestStalledWatchIsGivenUp(t *testing.T) {
	a := newAPIServer(t)
	timing := quick
	timing.watch, timing.overdue = time.Second, 100*time.Millisecond
	p := a.provider(t, nil, timing)
	ref := a.put(p, spec(t))
	a.spoil(fault{call: "watch pods", stall: true, times: 1})
	changes := mustWatch(t, p, ref)
	for a.counts()["watch pods"] == 0 { // a list would tell
		time.Sleep(time.Millisecond)
	}
	a.change(ref.Name, evicted)
	if now := next(t, changes); now.State != provider.Unknown {
		t.Errorf("%s %q, want unknown: the watch is given up", now.State, now.Reason)
	}
}

func TestPendingPodsExplainThemselves(t *testing.T) {
	waiting := func(reason, message string) func(*corev1.Pod) {
		return func(pod *corev1.Pod) {
			pod.Spec.NodeName = "node-1"
			pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: container, State: corev1.ContainerState{
				Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message},
			}}}
		}
	}
	for name, tc := range map[string]struct {
		holds func(*corev1.Pod)
		class error // nil: it is on its way
		says  string
	}{
		"no node has room": {func(pod *corev1.Pod) {
			pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Message: "0/3 nodes are available"}}
		}, provider.ErrQuotaExceeded, "unschedulable: 0/3 nodes are available"},
		"no such image":         {waiting("ErrImagePull", "manifest unknown"), provider.ErrPermanent, "manifest unknown"},
		"no right to the image": {waiting("ImagePullBackOff", "401 Unauthorized: denied: x"), provider.ErrPermanent, "denied"},
		"a wrong image":         {waiting("InvalidImageName", "x y"), provider.ErrPermanent, "InvalidImageName"},
		"registry is down":      {waiting("ImagePullBackOff", "dial tcp: i/o timeout"), provider.ErrTransient, "i/o timeout"},
		"container not made":    {waiting("CreateContainerError", "runtime"), provider.ErrTransient, "CreateContainerError"},
		"on its way":            {waiting("ContainerCreating", ""), nil, "prepares the container"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := newAPIServer(t)
			a.hold = true
			timeout := "4s"
			if tc.class == provider.ErrPermanent { // is not waited for
				timeout = "10m"
			}
			p := a.provider(t, map[string]any{"pending_timeout": timeout}, quick)
			told := make(chan string, 16)
			ctx := provider.WithProgress(t.Context(), func(message string) {
				told <- message
				if strings.Contains(message, "waiting for a node") {
					a.change(spec(t).Name, tc.holds)
				}
			})
			instance, err := p.Create(ctx, spec(t))
			close(told)
			if tc.class == nil {
				if err != nil || instance.State != provider.Provisioning {
					t.Errorf("%s, %v, want it left on its way", instance.State, err)
				}
				said := ""
				for message := range told {
					said += message + "\n"
				}
				if !strings.Contains(said, tc.says) {
					t.Errorf("told %q, want %q", said, tc.says)
				}
				return
			}
			if provider.Classify(err) != tc.class || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("%v (%v), want %q (%v)", err, provider.Classify(err), tc.says, tc.class)
			}
			if a.left() != 0 {
				t.Errorf("%d things are left", a.left())
			}
		})
	}
}

func TestStartWithoutAWatch(t *testing.T) {
	a := newAPIServer(t)
	a.hold = true
	a.spoil(fault{call: "watch pods", status: 500})
	p := a.provider(t, nil, quick)
	ctx := provider.WithProgress(t.Context(), func(string) { a.change(spec(t).Name, runs) })
	if got, err := p.Create(ctx, spec(t)); err != nil || got.State != provider.Running {
		t.Errorf("%v, %v, want it running", got.State, err)
	}
}
