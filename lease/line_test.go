package lease

import (
	"fmt"
	"math/rand/v2"
	"testing"
)

// Proxies come back in any order, some long after all others: the next is always
// the one that was leased longest ago.
func TestTheLeastRecentlyLeasedIsNextInWhateverOrderTheyComeBack(t *testing.T) {
	const n = 3 * lineSteps
	for seed := range uint64(20) {
		var list []*Proxy
		for i := range n {
			list = append(list, proxy(fmt.Sprintf("p%02d", i), "", 1))
		}
		b := newBench(t, list...)
		var granted []Lease
		for range n {
			granted = append(granted, b.take(Ask{}))
		}
		random := rand.New(rand.NewPCG(seed, 1))
		for _, i := range random.Perm(n) {
			b.Release(granted[i].ID)
		}
		b.audit(fmt.Sprint("seed ", seed))
		for i := range n {
			if got := b.take(Ask{}).Proxy.ID; got != granted[i].Proxy.ID {
				t.Fatalf("seed %d: grant %d is %s, want %s", seed, i, got, granted[i].Proxy.ID)
			}
		}
	}
}
