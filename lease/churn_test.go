package lease

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"
)

// churn does random things to a pool and checks it after each.
func churn(t *testing.T, seed uint64, steps int) {
	random := rand.New(rand.NewPCG(seed, 1))
	b := newBench(t)
	b.durable = true
	stored := map[string][]byte{}
	proxies := map[string]*Proxy{}
	var ids []string
	for step := range steps {
		did := b.random(random, proxies, &ids)
		if random.IntN(20) == 0 {
			did += ", loaded again"
			b.keep(stored)
			var records []Record
			for key, value := range stored {
				records = append(records, Record{Key: key, Value: value})
			}
			if skipped := b.Load(records); len(skipped) > 0 {
				t.Fatalf("step %d: %v", step, skipped)
			}
			b.Advance(b.now)
		}
		b.keep(stored)
		b.audit(fmt.Sprintf("seed %d, step %d, %s", seed, step, did))
		if b.t.Failed() {
			return
		}
	}
}

// keep applies the changes to what is stored.
func (b *bench) keep(stored map[string][]byte) {
	for _, c := range b.TakeChanges() {
		if c.Value == nil {
			delete(stored, c.Key)
		} else {
			stored[c.Key] = c.Value
		}
	}
}

func (b *bench) random(random *rand.Rand, proxies map[string]*Proxy, ids *[]string) string {
	pick := func() string {
		if len(*ids) == 0 {
			return "none"
		}
		return (*ids)[random.IntN(len(*ids))]
	}
	site := []string{"", "a.example", "b.example"}[random.IntN(3)]
	switch what := random.IntN(12); what {
	case 0, 1:
		n := random.IntN(12)
		p := proxy(fmt.Sprint("p", n), "", random.IntN(3), "x", fmt.Sprint(random.IntN(3)))
		if random.IntN(4) > 0 {
			p.ExitIP = netip.AddrFrom4([4]byte{192, 0, 2, byte(random.IntN(5))})
		}
		p.Healthy = random.IntN(4) > 0
		proxies[p.ID] = p
		b.SetProxies(values(proxies))
		return "set " + p.ID
	case 2:
		delete(proxies, fmt.Sprint("p", random.IntN(12)))
		b.SetProxies(values(proxies))
		return "lost"
	case 3:
		b.Release(pick())
		return "released"
	case 4, 5:
		result := []Result{OK, Blocked, Failed}[random.IntN(3)]
		_, _ = b.Report(pick(), result, site)
		return "reported " + string(result)
	case 6:
		_ = b.SetMark(fmt.Sprint("p", random.IntN(12)), MarkInfo{Mark: []Mark{MarkNone, MarkFreeze, MarkDrain}[random.IntN(3)]})
		return "marked"
	case 7:
		_, _ = b.Renew(pick(), 0)
		return "renewed"
	case 8:
		b.sleep(time.Duration(random.IntN(100)) * time.Second)
		return "slept"
	default:
		a := Ask{Target: site, Count: 1 + random.IntN(3), Partial: random.IntN(2) == 0, TTL: time.Duration(1+random.IntN(90)) * time.Second}
		a.Selector = []string{"", "x=1", "x!=1", "x>0"}[random.IntN(4)]
		if random.IntN(3) == 0 {
			a.Session, a.Mode = fmt.Sprint("s", random.IntN(3)), []string{"soft", "hard"}[random.IntN(2)]
		}
		leases, _ := b.ask(a)
		for _, l := range leases {
			*ids = append(*ids, l.ID)
		}
		return fmt.Sprintf("acquired %d", len(leases))
	}
}

func values(m map[string]*Proxy) []*Proxy {
	var list []*Proxy
	for _, p := range m {
		list = append(list, p)
	}
	return list
}

// audit counts everything anew and compares.
func (b *bench) audit(when string) {
	active, groups := map[*entry]int{}, map[*group]int{}
	for _, h := range b.leases {
		active[h.entry]++
		groups[h.entry.group]++
		if b.entries[h.entry.proxy.ID] != h.entry {
			b.t.Errorf("%s: a lease is on a proxy that the pool dropped", when)
		}
	}
	for id, e := range b.entries {
		if e.active != active[e] || e.fit != (e.fault() == Free) || e.state != e.disposition() || e.group.key != e.proxy.groupKey() {
			b.t.Errorf("%s: entry %s: active %d of %d, state %s of %s, group %s of %s", when, id,
				e.active, active[e], e.state, e.disposition(), e.group.key, e.proxy.groupKey())
		}
		if e.gone && e.active == 0 {
			b.t.Errorf("%s: entry %s is gone and kept", when, id)
		}
	}
	for key, g := range b.groups {
		if g.active != groups[g] || b.slots[g.index] != g {
			b.t.Errorf("%s: group %s: active %d of %d", when, key, g.active, groups[g])
		}
		if len(g.members) == 0 && g.failed == nil && len(g.blocked) == 0 {
			b.t.Errorf("%s: group %s is empty and kept", when, key)
		}
	}
	for key, v := range b.views {
		b.auditView(when+", view "+fmt.Sprint(key), v)
	}
}

func (b *bench) auditView(when string, v *view) {
	var counts [dispositions]int
	usable := map[int]uint32{}
	for id, e := range b.entries {
		if want := !e.gone && v.selector.Matches(e.proxy); v.has(e) != want {
			b.t.Errorf("%s: member %s %v, want %v", when, id, v.has(e), want)
		} else if want {
			counts[e.state]++
			if e.fit {
				usable[e.group.index]++
			}
		}
	}
	if counts != v.counts {
		b.t.Errorf("%s: counts %v, want %v", when, v.counts, counts)
	}
	in := 0
	var next *slot
	for _, g := range b.groups {
		v.grow(g)
		want := usable[g.index] > 0 && g.open() && (v.target == "" || !g.blockedBy(v.target))
		at := v.seats[g.index].pos
		if (at != nowhere) != want || v.seats[g.index].usable != usable[g.index] {
			b.t.Errorf("%s: group %s: at %d, usable %d; want in %v, usable %d", when, g.key, at, v.seats[g.index].usable, want, usable[g.index])
			continue
		}
		if want {
			in++
			if s := (slot{g.order(), int32(g.index)}); next == nil || less(b.Pool, s, *next) {
				next = &s
			}
			if at == inLine {
				if v.seats[g.index].key != g.order() {
					b.t.Errorf("%s: group %s: stale in the line", when, g.key)
				}
			} else if s := v.heap[at]; s.group != int32(g.index) || s.key != g.order() {
				b.t.Errorf("%s: group %s: stale slot", when, g.key)
			}
		}
	}
	if top := v.top(b.Pool); next == nil && top != nowhere || next != nil && top != next.group {
		b.t.Errorf("%s: next is %d, want %+v", when, top, next)
	}
	line, key := 0, uint64(0)
	for i, before := v.first, int32(nowhere); i != nowhere; i = v.seats[i].after {
		s := v.seats[i]
		if s.key <= key || s.before != before || s.pos != inLine || s.after == nowhere && v.last != i {
			b.t.Errorf("%s: line is broken at %d: %+v after key %d", when, i, s, key)
		}
		line, key, before = line+1, s.key, i
	}
	if in != line+len(v.heap)-root {
		b.t.Errorf("%s: %d in the line and %d in the heap, want %d", when, line, len(v.heap)-root, in)
	}
	for i := int32(root + 1); int(i) < len(v.heap); i++ {
		if less(b.Pool, v.heap[i], v.heap[above(i)]) {
			b.t.Errorf("%s: heap order at %d", when, i)
		}
	}
}
