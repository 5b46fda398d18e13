package lease

import (
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
	slices.Sort(smalls)
	slices.Sort(larges)
	at := func(sorted []float64, part float64) float64 { return sorted[int(part*float64(len(sorted)-1))] }
	b.ReportMetric(at(smalls, .5), "ns/100")
	b.ReportMetric(at(larges, .5), "ns/100k")
	b.ReportMetric(at(larges, .5)/at(smalls, .5), "ratio")
	b.ReportMetric(at(larges, .05)/at(smalls, .05), "quiet-ratio")
}
