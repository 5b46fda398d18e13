package lease

import (
	"fmt"
	"net/netip"
	"runtime"
	"testing"
	"time"
)

// fleet is n healthy proxies with exits of their own.
func fleet(n int) []*Proxy {
	list := make([]*Proxy, n)
	for i := range list {
		list[i] = &Proxy{ID: fmt.Sprintf("eg-%06d", i), Address: "10.0.0.1", Port: 3128, MaxLeases: 1, Healthy: true,
			ExitIP:     netip.AddrFrom4([4]byte{100, byte(i >> 16), byte(i >> 8), byte(i)}),
			Attributes: map[string]string{"country": []string{"DE", "PL"}[i%2], "provider": "kvm"}}
	}
	return list
}

// warm is a pool of n proxies of which each was leased once, and a request.
func warm(tb testing.TB, n int) (*bench, *Request) {
	b := newBench(tb, fleet(n)...)
	r, err := b.Rules().NewRequest(Ask{Selector: "country=DE", Target: "site.example", TTL: time.Minute})
	if err != nil {
		tb.Fatal(err)
	}
	for range n / 2 {
		cycle(tb, b, r)
	}
	return b, r
}

func cycle(tb testing.TB, b *bench, r *Request) {
	leases, err := b.Acquire(r)
	if err != nil {
		tb.Fatal(err)
	}
	b.Release(leases[0].ID)
}

// The hot path must stay within its budget: the lease, its id, the answer, and
// the refusal to forget why it ended.
func TestAcquireAndReleaseStayWithinTheirAllocations(t *testing.T) {
	b, r := warm(t, 1000)
	if n := testing.AllocsPerRun(1000, func() { cycle(t, b, r) }); n > 4 {
		t.Errorf("acquire and release allocate %.0f times, want at most 4", n)
	}
	l, err := b.Acquire(r)
	if err != nil {
		t.Fatal(err)
	}
	if n := testing.AllocsPerRun(1000, func() { _, _ = b.Renew(l[0].ID, 0) }); n > 0 {
		t.Errorf("a renewal allocates %.0f times, want none", n)
	}
}

// BenchmarkPool is the cost of acquire and release in pools of different sizes;
// BenchmarkSize has the ratio.
func BenchmarkPool(b *testing.B) {
	for _, n := range []int{100, 10_000, 100_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			bench, r := warm(b, n)
			b.ReportAllocs()
			for b.Loop() {
				cycle(b, bench, r)
			}
		})
	}
}

// BenchmarkMemory is what a proxy and a lease occupy.
func BenchmarkMemory(b *testing.B) {
	const n = 100_000
	heap := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	for b.Loop() {
		list := fleet(n)
		empty := heap()
		bench := newBench(b, list...)
		r, _ := bench.Rules().NewRequest(Ask{TTL: time.Minute})
		if _, err := bench.Acquire(r); err != nil {
			b.Fatal(err)
		}
		full := heap()
		for range n - 1 {
			if _, err := bench.Acquire(r); err != nil {
				b.Fatal(err)
			}
		}
		b.ReportMetric(float64(full-empty)/n, "B/proxy")
		b.ReportMetric(float64(heap()-full)/n, "B/lease")
		runtime.KeepAlive(bench)
	}
}
