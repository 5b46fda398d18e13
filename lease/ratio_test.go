package lease

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// BenchmarkSize is what acquire and release cost with 100,000 proxies as a ratio
// to what they cost with 100. The two pools take turns in short slices, so that
// other load on the machine meets both, and the medians count.
func BenchmarkSize(b *testing.B) {
	small, smallRequest := warm(b, 100)
	large, largeRequest := warm(b, 100_000)
	const slice = 500
	measure := func(pool *bench, r *Request) float64 {
		began := time.Now()
		for range slice {
			cycle(b, pool, r)
		}
		return float64(time.Since(began).Nanoseconds()) / slice
	}
	var smalls, larges []float64
	for b.Loop() {
		smalls = append(smalls, measure(small, smallRequest))
		larges = append(larges, measure(large, largeRequest))
	}
	tellRatio(b, smalls, larges)
}

// BenchmarkSizeHeld is the same while half of the proxies are leased, and the
// lease that ends is any of them: that it is found costs memory of its own.
func BenchmarkSizeHeld(b *testing.B) {
	held := func(n int) (*bench, *Request, []string) {
		pool, r := warm(b, n)
		var ids []string
		for range n / 4 { // half of those that the selector chooses
			leases, err := pool.Acquire(r)
			if err != nil {
				b.Fatal(err)
			}
			ids = append(ids, leases[0].ID)
		}
		return pool, r, ids
	}
	random := rand.New(rand.NewPCG(1, 1))
	const slice = 500
	measure := func(pool *bench, r *Request, ids []string) float64 {
		began := time.Now()
		for range slice {
			i := random.IntN(len(ids))
			pool.Release(ids[i])
			leases, err := pool.Acquire(r)
			if err != nil {
				b.Fatal(err)
			}
			ids[i] = leases[0].ID
		}
		return float64(time.Since(began).Nanoseconds()) / slice
	}
	small, smallRequest, smallIDs := held(100)
	large, largeRequest, largeIDs := held(100_000)
	var smalls, larges []float64
	for b.Loop() {
		smalls = append(smalls, measure(small, smallRequest, smallIDs))
		larges = append(larges, measure(large, largeRequest, largeIDs))
	}
	tellRatio(b, smalls, larges)
}

// tellRatio gives the medians, their ratio, and the ratio of the quietest slices.
func tellRatio(b *testing.B, smalls, larges []float64) {
	slices.Sort(smalls)
	slices.Sort(larges)
	at := func(sorted []float64, part float64) float64 { return sorted[int(part*float64(len(sorted)-1))] }
	b.ReportMetric(at(smalls, .5), "ns/100")
	b.ReportMetric(at(larges, .5), "ns/100k")
	b.ReportMetric(at(larges, .5)/at(smalls, .5), "ratio")
	b.ReportMetric(at(larges, .05)/at(smalls, .05), "quiet-ratio")
}
