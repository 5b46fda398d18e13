package fingerprint

import "math"

// A number that moves by itself is published in bands, because each change of
// an attribute costs the Nomad servers a raft write and an evaluation of every
// job. A band is known by its lower edge, so that a published number never
// promises more than there was at the check.

// band is the lower edge of the band of v: v rounded down to one digit, or to
// one digit and a five (0…9, 10, 15, 20 … 95, 100, 150 …). It is at most a third
// below v.
func band(v int64) int64 { return v - v%step(v) }

// step is the width of the band of v.
func step(v int64) int64 {
	if v < 10 {
		return 1
	}
	width := int64(5)
	for v/10 >= width*2 && width <= math.MaxInt64/20 {
		width *= 10
	}
	return width
}

// settle is the number to publish after published when v is seen. A fall below
// the published band counts at once. A rise counts when it is clear of the edge
// by a fifth of the band, so that a number which hovers at an edge changes
// nothing.
func settle(published, v int64) int64 {
	if v < published {
		return band(v)
	}
	edge := band(v)
	if edge > 0 && v-edge < max(1, step(edge)/5) {
		edge = band(edge - 1)
	}
	return max(published, edge)
}
