package kvm

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/egress-proxies/egress/provider"
	"github.com/egress-proxies/egress/provider/kvm/domain"
)

func TestPlacement(t *testing.T) {
	for name, test := range map[string]struct {
		set  func(a, b *fake)
		want string
	}{
		"most memory":    {func(a, b *fake) { b.memory.Available = 12 << 30 }, "b"},
		"most disk":      {func(a, b *fake) { a.pool.Available = 1 << 30 }, "b"},
		"no room":        {func(a, b *fake) { a.memory.Available = 1 << 20 }, "b"},
		"unreachable":    {func(a, b *fake) { a.fail["Pool"] = provider.Transientf("down") }, "b"},
		"inactive pool":  {func(a, b *fake) { a.pool.Active = false }, "b"},
		"quota at start": {func(a, b *fake) { a.fail["StartDomain"] = provider.Quotaf("cannot allocate memory") }, "b"},
		"equal":          {func(a, b *fake) {}, "a"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, "a", "b")
			p, s := w.provider(t, "contract"), named(t, "x")
			test.set(w.hosts["a"], w.hosts["b"])
			if i := create(t, p, s); i.Zone != test.want {
				t.Errorf("placed on %s, want %s", i.Zone, test.want)
			}
			if n := w.hosts["a"].count(t, s.Name) + w.hosts["b"].count(t, s.Name); n != 4 {
				t.Errorf("%d pieces on both hosts, want the 4 of one machine", n)
			}
		})
	}
}

func TestFewestOfOursBreaksATie(t *testing.T) {
	w := newWorld(t, "a", "b")
	p := w.provider(t, "contract")
	var zones []string
	for i := range 4 {
		zones = append(zones, create(t, p, named(t, fmt.Sprint("t", i))).Zone)
	}
	if !slices.Equal(zones, []string{"a", "b", "a", "b"}) {
		t.Errorf("placed on %v, want them in turn", zones)
	}
}

// The tasks of one job start at once, before libvirt can count any of them.
func TestMachinesPlacedAtOnceAreSpread(t *testing.T) {
	w := newWorld(t, "a", "b")
	p := w.provider(t, "contract")
	var first []string
	var leave []func()
	for i := range 4 {
		plan, err := p.plan(named(t, fmt.Sprint("t", i)))
		if err != nil {
			t.Fatal(err)
		}
		hosts, done, err := p.place(t.Context(), plan)
		if err != nil {
			t.Fatal(err)
		}
		first, leave = append(first, hosts[0].name), append(leave, done)
	}
	if !slices.Equal(first, []string{"a", "b", "a", "b"}) {
		t.Errorf("placed on %v, want them in turn", first)
	}
	for _, done := range leave {
		done()
	}
	if p.hosts[0].arriving != 0 || p.hosts[1].arriving != 0 {
		t.Error("machines that have left are counted for ever")
	}
}

func TestNoRoomAnywhereTellsTheNumbers(t *testing.T) {
	w := newWorld(t, "a", "b")
	for _, h := range w.hosts {
		h.memory.Available = 100 << 20
	}
	_, err := w.provider(t, "contract").Create(t.Context(), named(t, "x"))
	if provider.Classify(err) != provider.ErrQuotaExceeded || !strings.Contains(err.Error(), "100 of 16384 MiB of memory") || !strings.Contains(err.Error(), "256 MiB") {
		t.Errorf("%v, want ErrQuotaExceeded with what is there and what is needed", err)
	}
}

// The host of an attempt that was cut off is asked, even when it is the one
// that can't be: the machine may run there.
func TestAnInterruptedAttemptIsLookedForOnItsHost(t *testing.T) {
	w := newWorld(t, "a", "b")
	s := named(t, "x")
	first := create(t, w.provider(t, "contract"), s)
	restarted := w.provider(t, "contract")
	w.hosts[first.Zone].fail["LookupDomain"] = provider.Transientf("down")
	if _, err := restarted.Create(t.Context(), s); provider.Classify(err) != provider.ErrTransient {
		t.Errorf("create while the first attempt's host is down: %v, want ErrTransient", err)
	}
	again := create(t, restarted, s)
	if again.ID != first.ID {
		t.Errorf("adopted %s, want %s", again.ID, first.ID)
	}
}

// Case 36: whatever an earlier attempt uploaded is not used.
func TestTheSeedIsAlwaysRebuilt(t *testing.T) {
	w := newWorld(t, "a")
	p, s := w.provider(t, "contract"), named(t, "x")
	host, volume := w.hosts["a"], domain.VolumeName("contract", s.Name, domain.Seed)
	host.volumes[volume] = &fakeVolume{content: []byte("cut off")}
	create(t, p, s)
	seed := host.volumes[volume].content
	if len(seed) < 32<<10 || !strings.Contains(string(seed), "#cloud-config") {
		t.Errorf("the seed has %d bytes and not the user-data", len(seed))
	}
	if !strings.Contains(host.domains[s.Name].xml, `file="/pool/`+volume) {
		t.Error("the machine does not name the seed by its path")
	}
}
