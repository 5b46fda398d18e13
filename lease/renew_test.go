package lease

import (
	"errors"
	"net/netip"
	"testing"
	"time"
)

// The table "Renewal" of docs/lease-api.md.
func TestRenewalFollowsTheTable(t *testing.T) {
	a := proxy("a", "192.0.2.1", 1, "x", "1")
	spare := proxy("b", "192.0.2.2", 1, "x", "1")
	const stays, moves, ends, told = "stays", "moves", "ends", "told"
	events := map[string]func(*bench, Lease){
		"nothing":      func(*bench, Lease) {},
		"unhealthy":    func(b *bench, _ Lease) { b.SetProxies([]*Proxy{with(a, func(p *Proxy) { p.Healthy = false }), spare}) },
		"cooling":      func(b *bench, l Lease) { _, _ = b.Report(l.ID, Failed, "") },
		"blocked":      func(b *bench, l Lease) { _, _ = b.Report(l.ID, Blocked, "") },
		"frozen":       func(b *bench, _ Lease) { _ = b.SetMark("a", MarkInfo{Mark: MarkFreeze}) },
		"draining":     func(b *bench, _ Lease) { _ = b.SetMark("a", MarkInfo{Mark: MarkDrain}) },
		"gone":         func(b *bench, _ Lease) { b.SetProxies([]*Proxy{spare}) },
		"unmatched":    func(b *bench, _ Lease) { b.SetProxies([]*Proxy{proxy("a", "192.0.2.1", 1, "x", "2"), spare}) },
		"exit changed": func(b *bench, _ Lease) { b.SetProxies([]*Proxy{proxy("a", "192.0.2.9", 1, "x", "1"), spare}) },
		"exit unknown": func(b *bench, _ Lease) { b.SetProxies([]*Proxy{proxy("a", "", 1, "x", "1"), spare}) },
	}
	for event, want := range map[string]struct{ none, soft, hard string }{
		"nothing":      {stays, stays, stays},
		"unhealthy":    {stays, moves, ends},
		"cooling":      {stays, moves, ends},
		"blocked":      {stays, moves, ends},
		"frozen":       {stays, stays, stays},
		"draining":     {ends, moves, ends},
		"gone":         {ends, moves, ends},
		"unmatched":    {ends, moves, ends},
		"exit changed": {told, told, ends},
		"exit unknown": {stays, stays, stays},
	} {
		for mode, want := range map[string]string{"": want.none, "soft": want.soft, "hard": want.hard} {
			t.Run(event+"/"+mode, func(t *testing.T) {
				b := newBench(t, a, spare)
				ask := Ask{Selector: "x=1", Target: "site.example", Mode: mode}
				if mode != "" {
					ask.Session = "s"
				}
				l := b.take(ask)
				events[event](b, l)
				renewed, err := b.Renew(l.ID, 0)
				got := stays
				switch {
				case errors.Is(err, ErrEnded):
					got = ends
				case err != nil:
					t.Fatal(err)
				case renewed.MovedReason != "" && renewed.Proxy.ID == "b":
					got = moves
				case renewed.MovedReason != "":
					got = told
				}
				if got != want {
					t.Errorf("%s, want %s (%+v, %v)", got, want, renewed, err)
				}
				b.audit(event)
			})
		}
	}
}

func TestSoftSessionThatFindsNothingBetterKeepsItsLease(t *testing.T) {
	a := proxy("a", "192.0.2.1", 1)
	b := newBench(t, a)
	l := b.take(Ask{Session: "s"})
	b.SetProxies([]*Proxy{with(a, func(p *Proxy) { p.Healthy = false })})
	if renewed, err := b.Renew(l.ID, 0); err != nil || renewed.State != Unhealthy {
		t.Errorf("unhealthy: %+v, %v", renewed, err)
	}
	b.SetProxies([]*Proxy{a})
	mark(t, b, "a", MarkDrain)
	if _, err := b.Renew(l.ID, 0); !errors.Is(err, ErrNoCapacity) {
		t.Errorf("draining: %v", err)
	}
	if _, err := b.Lease(l.ID); err != nil {
		t.Errorf("the lease did not outlive the refusal: %v", err)
	}
}

// Case 25.
func TestExitChangeEndsHardSessionsAtOnceAndBansStayWithTheAddress(t *testing.T) {
	a := proxy("a", "192.0.2.1", 2)
	b := newBench(t, a)
	hard := b.take(Ask{Session: "h", Mode: "hard", Target: "site.example"})
	plain := b.take(Ask{Target: "site.example"})
	report(t, b, plain.ID, Blocked)

	b.SetProxies([]*Proxy{with(a, func(p *Proxy) { p.ExitIP = netip.MustParseAddr("192.0.2.2") })})
	if _, err := b.Lease(hard.ID); !errors.Is(err, ErrEnded) {
		t.Errorf("the hard session's lease: %v", err)
	}
	if _, err := b.Lease(plain.ID); err != nil {
		t.Errorf("the plain lease: %v", err)
	}
	l := b.take(Ask{Target: "site.example"}) // the new address is not banned
	b.Release(l.ID)

	b.SetProxies([]*Proxy{with(a, func(p *Proxy) { p.ID = "other" })})
	if c := b.refused(Ask{Target: "site.example"}).Counts; c.Blocked != 1 {
		t.Errorf("another proxy with the banned address: %+v", c)
	}
	b.take(Ask{Target: "elsewhere.example"})
}

func TestBanOfAnUnknownExitFollowsOnceItIsKnown(t *testing.T) {
	b := newBench(t, proxy("a", "", 1))
	l := b.take(Ask{Target: "site.example"})
	report(t, b, l.ID, Blocked)
	b.Release(l.ID)
	b.SetProxies([]*Proxy{proxy("a", "192.0.2.1", 1)})
	if c := b.refused(Ask{Target: "site.example"}).Counts; c.Blocked != 1 {
		t.Errorf("counts %+v", c)
	}
	b.audit("known")
}

func TestSessionKeepsItsExit(t *testing.T) {
	b := newBench(t, proxy("a", "192.0.2.1", 2), proxy("b", "192.0.2.2", 2), proxy("c", "192.0.2.3", 2))
	first := b.take(Ask{Session: "s"})
	if second := b.take(Ask{Session: "s"}); second.Proxy.ID != first.Proxy.ID {
		t.Errorf("second lease on %s, first on %s", second.Proxy.ID, first.Proxy.ID)
	}
	if r := b.refused(Ask{Session: "s"}); r.Session != "s" {
		t.Errorf("the refusal does not name the session: %+v", r)
	}
	b.sleep(time.Minute) // both expire; the session does not
	if third := b.take(Ask{Session: "s"}); third.Proxy.ID != first.Proxy.ID {
		t.Errorf("third lease on %s, first on %s", third.Proxy.ID, first.Proxy.ID)
	}
	b.sleep(time.Minute + b.Rules().SessionIdle)
	if len(b.sessions) != 0 {
		t.Error("an idle session is remembered")
	}
}

func TestSessionUsesAnotherProxyWithTheSameExit(t *testing.T) {
	b := newBench(t, proxy("a", "192.0.2.1", 3), proxy("b", "192.0.2.1", 3), proxy("c", "192.0.2.2", 3))
	l := b.take(Ask{Session: "s", Mode: "hard"})
	b.Release(l.ID)
	mark(t, b, l.Proxy.ID, MarkFreeze)
	again := b.take(Ask{Session: "s", Mode: "hard"})
	if again.ExitIP != l.ExitIP || again.Proxy.ID == l.Proxy.ID {
		t.Errorf("got %s at %s, want the other proxy at %s", again.Proxy.ID, again.ExitIP, l.ExitIP)
	}
}

func TestSessionWhoseProxyFailed(t *testing.T) {
	for mode, soft := range map[string]bool{"soft": true, "hard": false} {
		t.Run(mode, func(t *testing.T) {
			b := newBench(t, proxy("a", "192.0.2.1", 1), proxy("b", "192.0.2.2", 1))
			l := b.take(Ask{Session: "s", Mode: mode})
			b.Release(l.ID)
			mark(t, b, l.Proxy.ID, MarkDrain)
			leases, err := b.ask(Ask{Session: "s", Mode: mode})
			if soft {
				if err != nil || leases[0].MovedFrom != l.Proxy.ID || leases[0].MovedReason != ProxyDraining {
					t.Errorf("soft: %+v, %v", leases, err)
				}
				return
			}
			var ended *EndedError
			if !errors.As(err, &ended) || !errors.Is(err, ErrSessionEnded) || ended.Reason != ProxyDraining {
				t.Fatalf("hard: %v", err)
			}
			if l := b.take(Ask{Session: "s", Mode: mode}); l.Proxy.ID != "b" {
				t.Errorf("a new session started on %s", l.Proxy.ID)
			}
		})
	}
}

func TestProxyThatComesBackKeepsItsLeases(t *testing.T) {
	a := proxy("a", "192.0.2.1", 1)
	b := newBench(t, a)
	l := b.take(Ask{})
	b.SetProxies(nil)
	if got, err := b.Lease(l.ID); err != nil || got.State != Gone {
		t.Errorf("while gone: %+v, %v", got, err)
	}
	b.refused(Ask{})
	b.SetProxies([]*Proxy{a})
	b.refused(Ask{})
	if _, err := b.Renew(l.ID, 0); err != nil {
		t.Error(err)
	}
	b.Release(l.ID)
	b.SetProxies(nil)
	if len(b.entries) != 0 || len(b.groups) != 0 {
		t.Errorf("%d entries and %d groups stay behind", len(b.entries), len(b.groups))
	}
}
