package lease

import (
	"slices"
	"strconv"
	"strings"
)

// Selector chooses proxies by their attributes and tags. The zero value chooses
// all. Its grammar is a table in docs/lease-api.md.
type Selector struct {
	conditions []condition
	text       string
}

// condition is one condition; all of a selector must hold.
type condition struct {
	key    string
	op     operator
	values []string
	number float64
}

type operator int

const (
	opIn operator = iota
	opNotIn
	opHas
	opLacks
	opLess
	opLessEqual
	opGreater
	opGreaterEqual
)

// tagKey is the key that stands for the tags, each a value.
const tagKey = "tag"

// String is the normal form: conditions sorted, spelled one way. Two selectors with
// the same normal form choose the same proxies.
func (s Selector) String() string { return s.text }

// Matches says whether the proxy is chosen.
func (s Selector) Matches(p *Proxy) bool {
	for i := range s.conditions {
		if !s.conditions[i].matches(p) {
			return false
		}
	}
	return true
}

func (t *condition) matches(p *Proxy) bool {
	value, has := p.Attributes[t.key]
	switch t.op {
	case opIn:
		return t.any(p, value, has)
	case opNotIn:
		return !t.any(p, value, has)
	case opHas:
		return has || slices.Contains(p.Tags, t.key)
	case opLacks:
		return !has && !slices.Contains(p.Tags, t.key)
	}
	number, err := strconv.ParseFloat(value, 64)
	if err != nil {
		return false
	}
	switch t.op {
	case opLess:
		return number < t.number
	case opLessEqual:
		return number <= t.number
	case opGreater:
		return number > t.number
	default:
		return number >= t.number
	}
}

// any is true when the attribute, or one of the tags, is among the values.
func (t *condition) any(p *Proxy, value string, has bool) bool {
	if t.key == tagKey {
		for _, tag := range p.Tags {
			if slices.Contains(t.values, tag) {
				return true
			}
		}
		return false
	}
	return has && slices.Contains(t.values, value)
}

// String is the condition in its normal form.
func (t *condition) String() string {
	switch t.op {
	case opHas:
		return t.key
	case opLacks:
		return "!" + t.key
	case opLess, opLessEqual, opGreater, opGreaterEqual:
		sign := map[operator]string{opLess: "<", opLessEqual: "<=", opGreater: ">", opGreaterEqual: ">="}[t.op]
		return t.key + sign + strconv.FormatFloat(t.number, 'g', -1, 64)
	}
	quoted := make([]string, len(t.values))
	for i, v := range t.values {
		quoted[i] = quoteValue(v)
	}
	switch {
	case len(quoted) == 1 && t.op == opIn:
		return t.key + "=" + quoted[0]
	case len(quoted) == 1:
		return t.key + "!=" + quoted[0]
	case t.op == opIn:
		return t.key + " in (" + strings.Join(quoted, ",") + ")"
	default:
		return t.key + " not in (" + strings.Join(quoted, ",") + ")"
	}
}

// quoteValue puts quotes around a value that would not be read back as it is.
func quoteValue(v string) string {
	for i := 0; i < len(v); i++ {
		if !isValueByte(v[i]) {
			return strconv.Quote(v)
		}
	}
	if v == "" {
		return `""`
	}
	return v
}
