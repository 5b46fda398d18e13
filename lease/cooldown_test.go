package lease

import (
	"errors"
	"fmt"
	"testing"
	"time"
)

// Case 23.
func TestBlockedBansTheProxyForThatTargetOnly(t *testing.T) {
	b := newBench(t, proxy("a", "192.0.2.1", 1))
	l := b.take(Ask{Target: "https://A.example/path"})
	report(t, b, l.ID, Blocked)
	b.Release(l.ID)
	if c := b.refused(Ask{Target: "a.example:443"}).Counts; c.Blocked != 1 {
		t.Errorf("counts %+v", c)
	}
	b.Release(b.take(Ask{Target: "b.example"}).ID)
	b.Release(b.take(Ask{}).ID)
	b.sleep(b.Rules().Blocked.Base)
	b.take(Ask{Target: "a.example"})
}

func TestCooldownGrowsIsCappedAndForgotten(t *testing.T) {
	b := newBench(t, proxy("a", "192.0.2.1", 1))
	rules := b.Rules().Failed
	fail := func() time.Duration {
		l := b.take(Ask{TTL: time.Hour})
		c := report(t, b, l.ID, Failed)
		if again := report(t, b, l.ID, Failed); again.Remaining != c.Remaining || again.Strikes != c.Strikes {
			t.Errorf("a second report of the same failure changed %+v to %+v", c, again)
		}
		b.Release(l.ID)
		return c.Remaining
	}
	want := rules.Base
	for range 12 {
		if got := fail(); got != want {
			t.Fatalf("cooldown %s, want %s", got, want)
		}
		b.refused(Ask{})
		b.sleep(want)
		want = min(2*want, rules.Cap)
	}
	b.sleep(rules.Cap)
	if got := fail(); got != rules.Base {
		t.Errorf("after a quiet time the cooldown is %s, want %s", got, rules.Base)
	}
}

func TestOKForgivesWhatIsOver(t *testing.T) {
	b := newBench(t, proxy("a", "192.0.2.1", 1))
	l := b.take(Ask{Target: "a.example"})
	report(t, b, l.ID, Blocked)
	report(t, b, l.ID, OK) // an answer that was on its way
	b.Release(l.ID)
	b.refused(Ask{Target: "a.example"})
	b.sleep(time.Minute)
	l = b.take(Ask{Target: "a.example"})
	report(t, b, l.ID, OK)
	if c := report(t, b, l.ID, Blocked); c.Strikes != 1 {
		t.Errorf("strikes %d, want 1", c.Strikes)
	}
}

func TestBlockedWithoutAnyTargetIsRefused(t *testing.T) {
	b := newBench(t, proxy("a", "", 1))
	l := b.take(Ask{})
	if _, err := b.Report(l.ID, Blocked, ""); !errors.Is(err, ErrInvalid) {
		t.Error(err)
	}
}

// With more banned exits than a pick steps over, an index for the target takes
// over; both must agree with the ban.
func TestManyBansOfOneTarget(t *testing.T) {
	const n = 3 * smallBans
	var proxies []*Proxy
	for i := range n {
		proxies = append(proxies, proxy(fmt.Sprintf("p%02d", i), fmt.Sprintf("192.0.2.%d", i), 1))
	}
	b := newBench(t, proxies...)
	banned := map[string]bool{}
	for i := range n - 1 {
		l := b.take(Ask{Target: "a.example"})
		if banned[l.Proxy.ID] {
			t.Fatalf("lease %d is on the banned %s", i, l.Proxy.ID)
		}
		banned[l.Proxy.ID] = true
		report(t, b, l.ID, Blocked)
		b.Release(l.ID)
		b.audit(fmt.Sprint(i))
	}
	b.take(Ask{Target: "a.example"})
	if c := b.refused(Ask{Target: "a.example"}).Counts; c.Blocked != n-1 || c.AtCapacity != 1 {
		t.Errorf("counts %+v", c)
	}
	b.sleep(time.Hour)
	b.audit("after")
	for range n {
		b.take(Ask{Target: "a.example"})
	}
}

func TestMarks(t *testing.T) {
	b := newBench(t, proxy("a", "192.0.2.1", 2))
	l := b.take(Ask{})
	for _, m := range []Mark{MarkFreeze, MarkDrain} {
		mark(t, b, "a", m)
		b.refused(Ask{})
		if _, err := b.Lease(l.ID); err != nil {
			t.Errorf("%s ended a lease: %v", m, err)
		}
	}
	mark(t, b, "a", MarkNone)
	b.take(Ask{})
	for _, m := range []Mark{MarkFreeze, MarkNone} {
		if err := b.SetMark("nobody", MarkInfo{Mark: m}); !errors.Is(err, ErrUnknownProxy) {
			t.Errorf("%q on an unknown proxy: %v", m, err)
		}
	}
}

func TestMarkOutlivesTheProxysAbsence(t *testing.T) {
	a := proxy("a", "", 1)
	b := newBench(t, a)
	mark(t, b, "a", MarkFreeze)
	b.SetProxies(nil)
	b.SetProxies([]*Proxy{a})
	b.refused(Ask{})
}
