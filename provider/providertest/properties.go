package providertest

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/egress-proxies/egress/provider"
)

func (h Harness) unknown(t *testing.T) {
	ctx, p, spec := h.subject(t)
	if _, err := p.Get(ctx, provider.Ref{Name: spec.Name}); !errors.Is(err, provider.ErrNotFound) {
		t.Errorf("get of an unknown instance: %v, want ErrNotFound", err)
	}
	if err := p.Delete(ctx, provider.Ref{Name: spec.Name}); err != nil {
		t.Errorf("delete of an unknown instance: %v, want success", err)
	}
	if h.UnknownZone == "" {
		return
	}
	_, err := p.Get(ctx, provider.Ref{Name: spec.Name, Zone: h.UnknownZone})
	if err == nil || errors.Is(err, provider.ErrNotFound) {
		t.Errorf("get in the unknown zone %q: %v, want an error that isn't ErrNotFound", h.UnknownZone, err)
	}
	spec.Zone = h.UnknownZone
	if _, err := p.Create(ctx, spec); provider.Classify(err) != provider.ErrPermanent {
		t.Errorf("create in the unknown zone %q: %v, want ErrPermanent", h.UnknownZone, err)
	}
}

func (h Harness) badName(t *testing.T) {
	ctx, p, spec := h.subject(t)
	for _, name := range []string{"", "x", "eg-../../etc", "eg-a/b", "eg-UPPER", "eg-a b"} {
		bad := spec
		bad.Name = name
		if _, err := p.Create(ctx, bad); provider.Classify(err) != provider.ErrPermanent {
			t.Errorf("create of name %q: %v, want ErrPermanent", name, err)
		}
	}
}

func (h Harness) lifecycle(t *testing.T) {
	ctx, p, spec := h.subject(t)
	running := h.create(t, ctx, p, spec)
	if running.Address == "" && !h.NoAddress {
		t.Error("a running instance has no address")
	}
	ours := listed(t, ctx, p, spec.Name)
	if len(ours) != 1 {
		t.Fatalf("listed %d times, want once: %+v", len(ours), ours)
	}
	if diff := cmp.Diff(spec.Labels, ours[0].Labels); diff != "" {
		t.Errorf("labels in the list (-want +got):\n%s", diff)
	}
	if err := p.Delete(ctx, running.Ref); err != nil {
		t.Fatalf("delete: %v", err)
	}
	h.gone(t, ctx, p, spec)
	if err := p.Delete(ctx, running.Ref); err != nil {
		t.Errorf("second delete: %v, want success", err)
	}
}

func (h Harness) idempotent(t *testing.T) {
	ctx, p, spec := h.subject(t)
	first := h.create(t, ctx, p, spec)
	before := h.count(t, spec.Name)
	second := h.create(t, ctx, p, spec)
	if first.ID != second.ID {
		t.Errorf("the second create made %q, want the first one's %q", second.ID, first.ID)
	}
	if after := h.count(t, spec.Name); after != before {
		t.Errorf("%d things after the second create, %d before", after, before)
	}
}

func (h Harness) concurrent(t *testing.T) {
	ctx, p, spec := h.subject(t)
	const callers = 4
	ids := make([]string, callers)
	var wait sync.WaitGroup
	for i := range callers {
		wait.Go(func() {
			instance, err := p.Create(ctx, spec)
			if err != nil {
				t.Errorf("concurrent create: %v", err)
			}
			ids[i] = instance.ID
		})
	}
	wait.Wait()
	running := h.await(t, ctx, p, provider.Ref{Name: spec.Name}, provider.Running)
	for _, id := range ids {
		if id != running.ID {
			t.Errorf("concurrent creates gave %q, want all of them %q", ids, running.ID)
			break
		}
	}
	if ours := listed(t, ctx, p, spec.Name); len(ours) != 1 {
		t.Errorf("listed %d times after concurrent creates, want once", len(ours))
	}
}

func (h Harness) restart(t *testing.T) {
	ctx, p, spec := h.subject(t)
	before := h.create(t, ctx, p, spec)
	restarted := h.New(t, cluster)
	for _, ref := range []provider.Ref{{Name: spec.Name}, before.Ref} {
		after, err := restarted.Get(ctx, ref)
		if err != nil {
			t.Fatalf("get of %q after a restart: %v", ref, err)
		}
		if after.ID != before.ID || after.State != before.State || after.Address != before.Address || after.Ref != before.Ref {
			t.Errorf("after a restart %q is %+v, want %+v", ref, after, before)
		}
	}
	adopted, err := restarted.Create(ctx, spec)
	if err != nil || adopted.ID != before.ID {
		t.Errorf("create after a restart gave %q, %v, want %q adopted", adopted.ID, err, before.ID)
	}
	if err := restarted.Delete(ctx, provider.Ref{Name: spec.Name}); err != nil {
		t.Errorf("delete by name alone after a restart: %v", err)
	}
	h.gone(t, ctx, p, spec)
}

func (h Harness) otherCluster(t *testing.T) {
	ctx, p, spec := h.subject(t)
	h.create(t, ctx, p, spec)
	if theirs := listed(t, ctx, h.New(t, "other"), spec.Name); len(theirs) != 0 {
		t.Errorf("another cluster's list has our instance: %+v", theirs)
	}
}

func (h Harness) stopped(t *testing.T) {
	if h.End == nil {
		return
	}
	ctx, p, spec := h.subject(t)
	first := h.create(t, ctx, p, spec)
	h.End(t, first)
	ended := h.await(t, ctx, p, first.Ref, provider.Stopped)
	if ended.Reason == "" {
		t.Error("a stopped instance gives no reason")
	}
	second := h.create(t, ctx, p, spec)
	if second.ID == first.ID {
		t.Errorf("create over a stopped leftover gave the old %q again", first.ID)
	}
}

func (h Harness) cancellation(t *testing.T) {
	_, p, spec := h.subject(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := p.Create(ctx, spec); err == nil {
		t.Error("create with a cancelled context: want an error")
	}
	if _, err := p.Get(ctx, provider.Ref{Name: spec.Name}); err == nil {
		t.Error("get with a cancelled context: want an error")
	}
	if _, err := p.List(ctx); err == nil {
		t.Error("list with a cancelled context: want an error")
	}
	if n := h.count(t, spec.Name); n != 0 {
		t.Errorf("%d things exist after a cancelled create, want 0", n)
	}
}

func (h Harness) partial(t *testing.T, partial Partial) {
	t.Run("Create", func(t *testing.T) {
		ctx, p, spec := h.subject(t)
		partial.Make(t, spec)
		h.create(t, ctx, p, spec)
		if ours := listed(t, ctx, p, spec.Name); len(ours) != 1 {
			t.Errorf("listed %d times, want once: %+v", len(ours), ours)
		}
	})
	t.Run("ListAndDelete", func(t *testing.T) {
		ctx, p, spec := h.subject(t)
		partial.Make(t, spec)
		ours := listed(t, ctx, p, spec.Name)
		if partial.Invisible {
			return
		}
		if len(ours) == 0 {
			t.Fatal("what a cut-off create left is not listed")
		}
		for _, left := range ours {
			if err := p.Delete(ctx, left.Ref); err != nil {
				t.Errorf("delete of %q: %v", left.Ref, err)
			}
		}
		h.gone(t, ctx, p, spec)
	})
}

func (h Harness) fault(t *testing.T, fault Fault) {
	ctx, _, spec := h.subject(t)
	_, err := fault.Provider(t).Create(ctx, spec)
	if err == nil {
		t.Fatal("create: want an error")
	}
	if got := provider.Classify(err); got != fault.Class {
		t.Errorf("create: %v is classed %v, want %v", err, got, fault.Class)
	}
	if n := h.count(t, spec.Name); n != 0 {
		t.Errorf("%d things are left after a failed create, want 0", n)
	}
}

func (h Harness) count(t *testing.T, name string) int {
	t.Helper()
	if h.Count == nil {
		return 0
	}
	return h.Count(t, name)
}
