package fingerprint

import (
	"strconv"
	"strings"
)

// moving says of the facts whose value is a number whether it moves by itself.
// A number that isn't in the table is taken to move, so that a new fact can't
// flood the servers; text is published as it is.
var moving = map[string]bool{
	"pool_capacity_gib": false,
	"memory_total_mib":  false,
	"cpus":              false,

	"pool_available_gib":      true,
	"memory_available_mib":    true,
	"state_dir_available_mib": true,
	"instances_free":          true,
	"cpus_free":               true,
	"addresses_free":          true,
}

// sizes are the exact facts which are published in a rounder unit. The exact
// ones go to the metrics.
var sizes = map[string]struct {
	published string
	unit      int64
}{
	"pool_capacity_bytes":    {"pool_capacity_gib", gib},
	"pool_available_bytes":   {"pool_available_gib", gib},
	"memory_total_bytes":     {"memory_total_mib", mib},
	"memory_available_bytes": {"memory_available_mib", mib},
}

const (
	mib = 1 << 20
	gib = 1 << 30
)

// Readable gives a target's facts with exact sizes in the rounder units of the
// attributes, for people.
func Readable(facts map[string]string) map[string]string {
	readable := make(map[string]string, len(facts))
	for key, value := range facts {
		number, err := strconv.ParseInt(value, 10, 64)
		if size, ok := sizes[key]; ok && err == nil {
			key, value = size.published, strconv.FormatInt(number/size.unit, 10)
		}
		readable[key] = value
	}
	return readable
}

// maxText bounds a fact that is text. Nomad has no bound of its own.
const maxText = 128

// isRoom is true for facts that say how much more would fit.
func isRoom(fact string) bool {
	return strings.Contains(fact, "_available_") || strings.HasSuffix(fact, "_free")
}

// publish gives the attributes of a target's facts, after those that were
// published before.
func publish(facts, before map[string]string) map[string]string {
	published := make(map[string]string, len(facts))
	for key, value := range facts {
		number, err := strconv.ParseInt(value, 10, 64)
		isNumber := err == nil && number >= 0
		if size, ok := sizes[key]; ok && isNumber {
			key, number = size.published, number/size.unit
			value = strconv.FormatInt(number, 10)
		}
		moves, known := moving[key]
		if isNumber && (moves || !known) {
			edge := band(number)
			if last, err := strconv.ParseInt(before[key], 10, 64); err == nil {
				edge = settle(last, number)
			}
			value = strconv.FormatInt(edge, 10)
		}
		if value = printable(value); value != "" {
			published[key] = value
		}
	}
	return published
}

// printable is text on one line of bounded length: it comes from a host that
// may be broken.
func printable(text string) string {
	text = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r == '\uFFFD' {
			return -1
		}
		return r
	}, strings.ToValidUTF8(text, ""))
	for i := range text {
		if i >= maxText {
			return text[:i]
		}
	}
	return text
}

// bytesOf is the size that a fact tells exactly or in its rounder unit.
func bytesOf(facts map[string]string, exact string) (bytes float64, ok bool) {
	if number, err := strconv.ParseUint(facts[exact], 10, 64); err == nil {
		return float64(number), true
	}
	size := sizes[exact]
	if number, err := strconv.ParseUint(facts[size.published], 10, 64); err == nil {
		return float64(number) * float64(size.unit), true
	}
	return 0, false
}
