package fingerprint

import (
	"math"
	"testing"
)

func TestBand(t *testing.T) {
	for v, want := range map[int64]int64{
		0: 0, 1: 1, 9: 9, 10: 10, 14: 10, 15: 15, 19: 15, 40: 40, 99: 95,
		100: 100, 149: 100, 150: 150, 999: 950, 1000: 1000, 15873: 15000, 100000: 100000,
	} {
		if got := band(v); got != want {
			t.Errorf("band(%d) = %d, want %d", v, got, want)
		}
	}
}

func TestSettle(t *testing.T) {
	for name, tc := range map[string]struct {
		published int64
		seen      []int64
		want      int64
	}{
		"a fall below the band counts at once":       {100, []int64{99}, 95},
		"a fall within the band changes nothing":     {100, []int64{149, 120, 100}, 100},
		"a rise just over the edge changes nothing":  {100, []int64{150, 159}, 100},
		"a rise clear of the edge counts":            {100, []int64{160}, 150},
		"hovering at an edge falls once":             {50, []int64{49, 50, 49, 50, 49, 50}, 45},
		"hovering at a small edge falls once":        {10, []int64{9, 10, 9, 10}, 9},
		"a leap counts":                              {5, []int64{5000}, 4500},
		"from nothing":                               {0, []int64{1}, 0},
		"from nothing to something that can be used": {0, []int64{2}, 1},
		"to nothing": {7, []int64{0}, 0},
	} {
		got := tc.published
		for _, v := range tc.seen {
			got = settle(got, v)
		}
		if got != tc.want {
			t.Errorf("%s: %d, want %d", name, got, tc.want)
		}
	}
}

// FuzzSettle: a published number never promises more than there is, is at most
// two bands below it, and stays when the same is seen again.
func FuzzSettle(f *testing.F) {
	f.Add(int64(100), int64(159))
	f.Add(int64(0), int64(9))
	f.Add(int64(math.MaxInt64), int64(math.MaxInt64))
	f.Add(int64(95), int64(math.MaxInt64))
	f.Fuzz(func(t *testing.T, published, v int64) {
		if published < 0 || v < 0 {
			t.Skip()
		}
		published = band(published)
		got := settle(published, v)
		if got > v {
			t.Fatalf("settle(%d, %d) = %d promises too much", published, v, got)
		}
		if below := band(v); got < below && below > 0 && got < band(below-1) {
			t.Fatalf("settle(%d, %d) = %d is more than a band below %d", published, v, got, below)
		}
		if again := settle(got, v); again != got {
			t.Fatalf("settle(%d, %d) = %d, and then %d", published, v, got, again)
		}
	})
}
