package lease

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"
)

// bench is a pool with a clock of its own.
type bench struct {
	*Pool
	t   testing.TB
	now time.Time
}

var start = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func newBench(t testing.TB, proxies ...*Proxy) *bench {
	b := &bench{Pool: NewPool(Rules{}, start), t: t, now: start}
	if len(proxies) > 0 {
		b.SetProxies(proxies)
	}
	return b
}

// sleep moves the clock on.
func (b *bench) sleep(d time.Duration) {
	b.now = b.now.Add(d)
	b.Advance(b.now)
}

// proxy makes a healthy one: "a", "a 192.0.2.1", and its attributes.
func proxy(id, exit string, max int, attributes ...string) *Proxy {
	p := &Proxy{ID: id, Address: "10.0.0.1", Port: 3128, MaxLeases: max, Healthy: true, Attributes: map[string]string{}}
	if exit != "" {
		p.ExitIP = netip.MustParseAddr(exit)
	}
	for i := 0; i < len(attributes); i += 2 {
		p.Attributes[attributes[i]] = attributes[i+1]
	}
	return p
}

// with is a copy of the proxy, changed.
func with(p *Proxy, change func(*Proxy)) *Proxy {
	c := *p
	change(&c)
	return &c
}

func (b *bench) ask(a Ask) ([]Lease, error) {
	b.t.Helper()
	r, err := b.Rules().NewRequest(a)
	if err != nil {
		b.t.Fatalf("request %+v: %v", a, err)
	}
	b.Advance(b.now)
	return b.Acquire(r)
}

// take acquires one lease that must be granted.
func (b *bench) take(a Ask) Lease {
	b.t.Helper()
	leases, err := b.ask(a)
	if err != nil {
		b.t.Fatalf("acquire %+v: %v", a, err)
	}
	return leases[0]
}

// refused acquires what must be refused for want of capacity.
func (b *bench) refused(a Ask) *Refusal {
	b.t.Helper()
	leases, err := b.ask(a)
	var refusal *Refusal
	if !errors.As(err, &refusal) {
		b.t.Fatalf("acquire %+v: %v, %v; want a refusal", a, leases, err)
	}
	return refusal
}

func TestSelectionIsFewestActiveThenLeastRecentThenID(t *testing.T) {
	b := newBench(t, proxy("c", "", 2), proxy("a", "", 2), proxy("b", "", 2))
	var order []string
	var leases []Lease
	for range 6 {
		l := b.take(Ask{})
		order, leases = append(order, l.Proxy.ID), append(leases, l)
	}
	if want := []string{"a", "b", "c", "a", "b", "c"}; !slices.Equal(order, want) {
		t.Errorf("order %v, want %v", order, want)
	}
	b.Release(leases[2].ID) // c, once
	b.Release(leases[1].ID) // b, once
	if l := b.take(Ask{}); l.Proxy.ID != "b" {
		t.Errorf("got %s, want b: leased before c", l.Proxy.ID)
	}
}

func TestCapacityIsNeverExceeded(t *testing.T) {
	for _, test := range []struct {
		name    string
		proxies []*Proxy
		want    int
	}{
		{"one", []*Proxy{proxy("a", "", 1)}, 1},
		{"several", []*Proxy{proxy("a", "", 3), proxy("b", "", 2)}, 5},
		{"one exit shares, the strictest counts", []*Proxy{proxy("a", "192.0.2.1", 3), proxy("b", "192.0.2.1", 2), proxy("c", "192.0.2.2", 1)}, 3},
		{"one exit in two spellings", []*Proxy{proxy("a", "::ffff:192.0.2.1", 1), proxy("b", "192.0.2.1", 1)}, 1},
		{"unlimited beside limited", []*Proxy{proxy("a", "192.0.2.1", 0), proxy("b", "192.0.2.1", 4)}, 4},
		{"unlimited", []*Proxy{proxy("a", "", 0)}, 20},
	} {
		t.Run(test.name, func(t *testing.T) {
			b := newBench(t, test.proxies...)
			granted := 0
			for range 20 {
				if _, err := b.ask(Ask{}); err == nil {
					granted++
				}
			}
			if granted != test.want {
				t.Errorf("%d leases, want %d", granted, test.want)
			}
		})
	}
}

func TestRefusalCountsEveryMatchingProxy(t *testing.T) {
	b := newBench(t,
		with(proxy("sick", "192.0.2.1", 1, "x", "1"), func(p *Proxy) { p.Healthy = false }),
		with(proxy("locked", "192.0.2.2", 1, "x", "1"), func(p *Proxy) { p.Auth = "who" }),
		proxy("frozen", "192.0.2.3", 1, "x", "1"),
		proxy("draining", "192.0.2.4", 1, "x", "1"),
		proxy("failed", "192.0.2.5", 1, "x", "1"),
		proxy("blocked", "192.0.2.6", 1, "x", "1"),
		proxy("full", "192.0.2.7", 1, "x", "1"),
		proxy("other", "192.0.2.8", 1))
	mark(t, b, "frozen", MarkFreeze)
	mark(t, b, "draining", MarkDrain)
	for range 3 {
		l := b.take(Ask{Selector: "x=1", Target: "site.example"})
		switch l.Proxy.ID {
		case "failed":
			report(t, b, l.ID, Failed)
		case "blocked":
			report(t, b, l.ID, Blocked)
		case "full":
			continue
		}
		b.Release(l.ID)
	}
	got := b.refused(Ask{Selector: "x=1", Target: "https://SITE.example/"}).Counts
	want := Counts{Matching: 7, Unhealthy: 1, NoCredentials: 1, Draining: 1, Frozen: 1, Cooling: 1, Blocked: 1, AtCapacity: 1}
	if got != want {
		t.Errorf("counts %+v, want %+v", got, want)
	}
	if r := b.refused(Ask{Selector: "x=2"}); !errors.Is(r, ErrNoMatch) || errors.Is(r, ErrNoCapacity) {
		t.Errorf("nothing matches, but the refusal is %v", r)
	}
}

// One lease fills an exit address for all that leave by it; the refusal tells
// who is full from who only shares.
func TestARefusalTellsWhoSharesAFullExit(t *testing.T) {
	b := newBench(t, proxy("a", "192.0.2.1", 1), proxy("b", "192.0.2.1", 1), proxy("c", "192.0.2.1", 0), proxy("d", "192.0.2.2", 1))
	for range 2 {
		b.take(Ask{})
	}
	r := b.refused(Ask{})
	if want := (Counts{Matching: 4, AtCapacity: 2, ExitFull: 2}); r.Counts != want {
		t.Errorf("counts %+v, want %+v", r.Counts, want)
	}
	if text := r.Error(); !strings.Contains(text, "4 match, of which 2 at capacity, 2 that share a full exit address,") {
		t.Error(text)
	}
	for _, l := range b.Leases() {
		b.Release(l.ID)
	}
	for _, p := range b.Proxies(Selector{}) {
		if p.State != Free {
			t.Errorf("%s is %s after the end of the leases", p.Proxy.ID, p.State)
		}
	}
	// Two of two slots, taken by two proxies, neither of which is full.
	b = newBench(t, proxy("a", "192.0.2.1", 2), proxy("b", "192.0.2.1", 2))
	b.take(Ask{})
	b.take(Ask{})
	if want, got := (Counts{Matching: 2, ExitFull: 2}), b.refused(Ask{}).Counts; got != want {
		t.Errorf("counts %+v, want %+v", got, want)
	}
}

func TestRetryAfterIsTheNextEndOfALease(t *testing.T) {
	b := newBench(t, proxy("a", "", 1))
	b.take(Ask{TTL: 20 * time.Second})
	b.sleep(5 * time.Second)
	if got := b.refused(Ask{}).RetryAfter; got != 15*time.Second {
		t.Errorf("retry after %s, want 15s", got)
	}
	b.sleep(15 * time.Second)
	b.take(Ask{})
}

func TestLeaseEndsAtItsTTLAndNotBefore(t *testing.T) {
	b := newBench(t, proxy("a", "", 1))
	l := b.take(Ask{TTL: 10 * time.Second})
	b.sleep(10*time.Second - time.Millisecond)
	b.refused(Ask{})
	if _, err := b.Renew(l.ID, 0); err != nil {
		t.Fatal(err)
	}
	b.sleep(10*time.Second - time.Millisecond)
	b.refused(Ask{})
	b.sleep(time.Millisecond)
	b.take(Ask{})
	var ended *EndedError
	if _, err := b.Renew(l.ID, 0); !errors.As(err, &ended) || ended.Reason != Expired {
		t.Errorf("renewal of an expired lease: %v", err)
	}
	if _, err := b.Renew("nonsense", 0); !errors.Is(err, ErrUnknownLease) {
		t.Errorf("renewal of an unknown lease: %v", err)
	}
}

func TestReleaseIsIdempotent(t *testing.T) {
	b := newBench(t, proxy("a", "", 1))
	l := b.take(Ask{})
	b.Release(l.ID)
	next := b.take(Ask{})
	b.Release(l.ID)
	b.refused(Ask{})
	b.Release(next.ID)
	b.take(Ask{})
}

func TestBatchIsAllOrNothingUnlessPartial(t *testing.T) {
	b := newBench(t, proxy("a", "", 1), proxy("b", "", 1), proxy("c", "", 1))
	if got := b.refused(Ask{Count: 4}); got.Counts.AtCapacity != 3 {
		t.Errorf("counts %+v", got.Counts)
	}
	if len(b.Leases()) != 0 {
		t.Fatalf("a refused batch left %d leases", len(b.Leases()))
	}
	leases, err := b.ask(Ask{Count: 4, Partial: true})
	if err != nil || len(leases) != 3 {
		t.Fatalf("partial: %d leases, %v", len(leases), err)
	}
	b.refused(Ask{Count: 4, Partial: true})
}

func TestRefusedBatchLeavesTheSessionAlone(t *testing.T) {
	b := newBench(t, proxy("a", "192.0.2.1", 2), proxy("b", "192.0.2.2", 2))
	l := b.take(Ask{Session: "s", Mode: "hard"})
	b.refused(Ask{Session: "s", Count: 3, Mode: "hard"})
	b.refused(Ask{Session: "new", Count: 9, Mode: "hard"})
	if again := b.take(Ask{Session: "s", Mode: "hard"}); again.Proxy.ID != l.Proxy.ID {
		t.Errorf("the session moved from %s to %s", l.Proxy.ID, again.Proxy.ID)
	}
	if b.sessions["new"] != nil {
		t.Error("a refused acquire made a session")
	}
}

func TestIdempotencyKeyGivesTheSameLeases(t *testing.T) {
	b := newBench(t, proxy("a", "", 1), proxy("b", "", 1))
	first, _ := b.ask(Ask{Key: "k", Count: 2})
	again, err := b.ask(Ask{Key: "k", Count: 2})
	if err != nil || len(again) != 2 || again[0].ID != first[0].ID || again[1].ID != first[1].ID {
		t.Fatalf("again %v, %v; want %v", again, err, first)
	}
	if _, err := b.ask(Ask{Key: "k", Count: 1}); !errors.Is(err, ErrKeyReused) {
		t.Errorf("another request under the key: %v", err)
	}
	b.Release(first[0].ID)
	b.Release(first[1].ID)
	if other, err := b.ask(Ask{Key: "k", Count: 1}); err != nil || other[0].ID == first[0].ID {
		t.Errorf("the key of ended leases: %v, %v", other, err)
	}
}

func TestNothingIsGrantedBeforeTheCatalogIsKnown(t *testing.T) {
	b := newBench(t)
	if _, err := b.ask(Ask{}); !errors.Is(err, ErrNotReady) {
		t.Errorf("acquire: %v", err)
	}
}

// Whatever happens, in whatever order, the books must balance.
func TestBooksBalanceAfterAnything(t *testing.T) {
	seeds := 30
	if testing.Short() {
		seeds = 5
	}
	for seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { churn(t, uint64(seed), 400) })
	}
}

func mark(t *testing.T, b *bench, id string, m Mark) {
	t.Helper()
	if err := b.SetMark(id, MarkInfo{Mark: m}); err != nil {
		t.Fatal(err)
	}
}

func report(t *testing.T, b *bench, id string, r Result) *Cooldown {
	t.Helper()
	c, err := b.Report(id, r, "")
	if err != nil {
		t.Fatal(err)
	}
	return c
}
