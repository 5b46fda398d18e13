package image

import (
	"strings"
	"testing"
	"time"

	"github.com/egress-proxies/egress/provider"
)

// stocked is a pool with images in every state, written at the given ages.
func stocked(now time.Time) (p *pool, used, unused, fresh, partial, stale string) {
	p = newPool("a")
	put := func(id, owner string, complete bool, age time.Duration) string {
		name := baseName{strings.Repeat(id, 32), owner, "0000000000000000", Qcow2}
		p.volumes[name.String()] = &fakeVolume{content: []byte("x"), modified: now.Add(-age)}
		if complete {
			p.volumes[marker{name, 1 << 30, strings.Repeat(id, 32)}.String()] = &fakeVolume{modified: now}
		}
		return name.String()
	}
	used = put("a", "11111111", true, 48*time.Hour)
	unused = put("b", "11111111", true, 48*time.Hour)
	fresh = put("c", "11111111", true, time.Minute)
	partial = put("d", "22222222", false, time.Minute)
	stale = put("e", "22222222", false, 2*PartialAge)
	p.volumes["eg-1.qcow2"] = &fakeVolume{backing: p.path(used), modified: now}
	p.volumes["somebody-elses.qcow2"] = &fakeVolume{modified: now.Add(-1000 * time.Hour)}
	return p, used, unused, fresh, partial, stale
}

func TestListTellsWhatIsUsed(t *testing.T) {
	p, used, unused, _, partial, _ := stocked(time.Now())
	stored, err := List(t.Context(), p)
	if err != nil || len(stored) != 5 {
		t.Fatalf("got %d images, %v; want 5", len(stored), err)
	}
	for _, s := range stored {
		switch s.Volume.Name {
		case used:
			if !s.Complete || len(s.UsedBy) != 1 || s.UsedBy[0] != "eg-1.qcow2" || s.VirtualSize != 1<<30 {
				t.Errorf("used: %+v", s)
			}
			if !s.For(Entry{URL: "/x", SHA256: strings.Repeat("a", 64)}) || s.For(Entry{URL: "/x", SHA256: strings.Repeat("b", 64)}) || s.For(Entry{URL: "/x"}) {
				t.Error("the entry of the image is not found")
			}
		case unused:
			if !s.Complete || len(s.UsedBy) != 0 {
				t.Errorf("unused: %+v", s)
			}
		case partial:
			if s.Complete {
				t.Errorf("partial: %+v", s)
			}
		}
	}
}

func TestPruneRemovesWhatNobodyNeeds(t *testing.T) {
	now := time.Now()
	p, used, unused, fresh, partial, stale := stocked(now)
	orphan := marker{baseName{strings.Repeat("f", 32), "11111111", "0000000000000000", Qcow2}, 1, "f"}.String()
	p.volumes[orphan] = &fakeVolume{modified: now}
	removed, err := Prune(t.Context(), p, now, time.Hour)
	if err != nil || len(removed) != 2 {
		t.Fatalf("removed %v, %v", removed, err)
	}
	left := strings.Join(p.names(), "\n")
	for _, name := range []string{unused, stale, orphan} {
		if strings.Contains(left, name) {
			t.Errorf("%s is still there", name)
		}
	}
	for _, name := range []string{used, fresh, partial, "eg-1.qcow2", "somebody-elses.qcow2"} {
		if !strings.Contains(left, name) {
			t.Errorf("%s was removed", name)
		}
	}
}

func TestImageThatComesIntoUseWhileItIsPrunedStays(t *testing.T) {
	now := time.Now()
	p, _, unused, _, _, _ := stocked(now)
	before := len(p.names())
	p.onDelete = func(name string) error {
		if strings.HasPrefix(name, unused) && strings.HasSuffix(name, ".ready") {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.volumes["eg-2.qcow2"] = &fakeVolume{backing: p.path(unused), modified: now}
		}
		return nil
	}
	removed, err := Prune(t.Context(), p, now, time.Hour)
	if err != nil || len(removed) != 1 || removed[0].Complete {
		t.Fatalf("removed %v, %v", removed, err)
	}
	if names := p.names(); len(names) != before { // one guest more, one stale file less
		t.Errorf("%d volumes, before %d: %q", len(names), before, names)
	}
	if base, err := find(t.Context(), p, strings.Repeat("b", 32)); err != nil || base.Volume.Name != unused {
		t.Errorf("the image can't be found any more: %v", err)
	}
}

func TestPruneOfAHostInTroubleRemovesNothing(t *testing.T) {
	now := time.Now()
	p, _, _, _, _, _ := stocked(now)
	before := len(p.names())
	lists := 0
	p.onList = func() error {
		if lists++; lists > 2 {
			return provider.Transientf("connection lost")
		}
		return nil
	}
	if _, err := Prune(t.Context(), p, now, time.Hour); err == nil {
		t.Error("no error")
	}
	if got := len(p.names()); got != before {
		t.Errorf("%d volumes are left of %d", got, before)
	}
}
