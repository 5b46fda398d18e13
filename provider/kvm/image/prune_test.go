package image

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"os"
	"path/filepath"
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
			p.volumes[marker{name, 1 << 30, strings.Repeat(id, 32)}.String()] = &fakeVolume{modified: now.Add(-age)}
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
			if !s.Holds(strings.Repeat("a", 32)) || s.Holds(strings.Repeat("b", 32)) || s.Holds("") {
				t.Error("the image is not known by its id")
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

func TestWhyAnImageIsKept(t *testing.T) {
	now := time.Now()
	p, used, unused, fresh, partial, stale := stocked(now)
	p.volumes["eg-2.qcow2"] = &fakeVolume{backing: p.path(used), modified: now}
	want := map[string]string{
		used: "in use by 2 disks", unused: "", fresh: "used less than 1h0m0s ago", partial: "being fetched", stale: "",
	}
	stored, err := List(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range stored {
		if got := s.Kept(now, time.Hour); got != want[s.Volume.Name] {
			t.Errorf("%s: kept because %q, want %q", s.Volume.Name, got, want[s.Volume.Name])
		}
		s.Volume.ModifiedAt, s.UsedBy = time.Time{}, nil
		if got := s.Kept(now, 0); !strings.Contains(got, "how old") {
			t.Errorf("%s of unknown age: kept because %q", s.Volume.Name, got)
		}
	}
}

// A warmed image has nothing standing on it: its use is what keeps it.
func TestAnImageThatIsWantedIsKept(t *testing.T) {
	now := time.Now()
	p, _, unused, _, _, _ := stocked(now)
	cache := NewCache(Options{})
	defer cache.Close()
	source := Source{Name: "b", SHA256: strings.Repeat("b", 64)}
	for range 3 {
		if _, err := cache.Ensure(t.Context(), source, p); err != nil {
			t.Fatal(err)
		}
	}
	if n := p.uploadCount(); n != 1 {
		t.Errorf("the use was noted %d times within the hour, want once", n)
	}
	if _, err := Prune(t.Context(), p, now, time.Hour); err != nil {
		t.Fatal(err)
	}
	if left := strings.Join(p.names(), "\n"); !strings.Contains(left, unused) {
		t.Errorf("an image that was just wanted is gone; left:\n%s", left)
	}
	p.onUpload = func(context.Context, string, io.Reader) error { return provider.Quotaf("disk full") }
	p.volumes[markerOf(t, p, unused)].modified = now.Add(-2 * time.Hour)
	if _, err := cache.Ensure(t.Context(), source, p); err != nil {
		t.Errorf("a note that can't be made: %v, want the image", err)
	}
}

func markerOf(t *testing.T, p *pool, base string) string {
	t.Helper()
	for _, name := range p.names() {
		if m, ok := parseMarker(name); ok && m.base.String() == base {
			return name
		}
	}
	t.Fatalf("%s has no marker", base)
	return ""
}

func TestIdentifyAndHas(t *testing.T) {
	now := time.Now()
	p, _, _, _, _, _ := stocked(now)
	cache := NewCache(Options{})
	defer cache.Close()
	file := filepath.Join(t.TempDir(), "image")
	if err := os.WriteFile(file, []byte("QFI\xfb"), 0o600); err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256([]byte("QFI\xfb"))
	if id, err := cache.Identify(t.Context(), Source{Path: file}); err != nil || id != hex.EncodeToString(sum[:])[:32] {
		t.Errorf("a file: %q, %v", id, err)
	}
	if _, err := cache.Identify(t.Context(), Source{Path: file + "x"}); provider.Classify(err) != provider.ErrPermanent {
		t.Errorf("a file that is not there: %v", err)
	}
	for id, want := range map[string][2]bool{"a": {true, false}, "d": {false, false}, "9": {false, false}} {
		id = strings.Repeat(id, 32)
		if complete, underway, err := Has(t.Context(), p, id); err != nil || complete != want[0] || underway != want[1] {
			t.Errorf("%s: complete %v, under way %v, %v", id, complete, underway, err)
		}
	}
	p.volumes[baseName{strings.Repeat("d", 32), "33333333", "0000000000000001", Raw}.String()] = &fakeVolume{modified: now}
	if complete, underway, err := Has(t.Context(), p, strings.Repeat("d", 32)); err != nil || complete || !underway {
		t.Errorf("one that is being sent: complete %v, under way %v, %v", complete, underway, err)
	}
}
