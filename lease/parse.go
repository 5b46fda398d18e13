package lease

import (
	"slices"
	"strconv"
	"strings"
)

const (
	// maxSelector bounds the text: longer ones are mistakes, and each distinct
	// selector costs an index over the pool.
	maxSelector = 1024
	// maxConditions bounds the work per proxy.
	maxConditions = 32
)

// ParseSelector reads a selector. Its error is a *FieldError that shows where
// the text goes wrong.
func ParseSelector(text string) (Selector, error) {
	p := &parser{text: text}
	if len(text) > maxSelector {
		return Selector{}, p.fail(maxSelector, "want at most "+strconv.Itoa(maxSelector)+" characters")
	}
	p.space()
	if p.end() {
		return Selector{}, nil
	}
	var s Selector
	for {
		t, err := p.condition()
		if err != nil {
			return Selector{}, err
		}
		if s.conditions = append(s.conditions, t); len(s.conditions) > maxConditions {
			return Selector{}, p.fail(p.pos, "want at most "+strconv.Itoa(maxConditions)+" conditions")
		}
		p.space()
		if p.end() {
			break
		}
		if !p.take(",") {
			return Selector{}, p.fail(p.pos, "want a comma between conditions")
		}
		p.space()
	}
	texts := make([]string, len(s.conditions))
	for i := range s.conditions {
		texts[i] = s.conditions[i].String()
	}
	slices.Sort(texts)
	s.text = strings.Join(slices.Compact(texts), ",")
	return s, nil
}

// parser reads a selector from left to right.
type parser struct {
	text string
	pos  int
}

func (p *parser) fail(pos int, want string) error {
	return &FieldError{Field: "selector", Value: p.text, Pos: min(pos, len(p.text)), Want: want}
}

func (p *parser) end() bool { return p.pos >= len(p.text) }

func (p *parser) space() {
	for !p.end() && (p.text[p.pos] == ' ' || p.text[p.pos] == '\t') {
		p.pos++
	}
}

// take moves over s when it comes next.
func (p *parser) take(s string) bool {
	if !strings.HasPrefix(p.text[p.pos:], s) {
		return false
	}
	p.pos += len(s)
	return true
}

// word moves over letters, digits, - and _, and returns them.
func (p *parser) word() string {
	start := p.pos
	for !p.end() && isKeyByte(p.text[p.pos]) {
		p.pos++
	}
	return p.text[start:p.pos]
}

// term reads one condition.
func (p *parser) condition() (condition, error) {
	if p.take("!") {
		p.space()
		key := p.word()
		if key == "" {
			return condition{}, p.fail(p.pos, "want the name of an attribute or a tag after !")
		}
		return condition{key: key, op: opLacks}, nil
	}
	key := p.word()
	if key == "" {
		return condition{}, p.fail(p.pos, "want the name of an attribute: letters, digits, - and _")
	}
	p.space()
	for _, c := range comparisons {
		if !p.take(c.sign) {
			continue
		}
		p.space()
		if c.op == opIn || c.op == opNotIn {
			value, err := p.value()
			return condition{key: key, op: c.op, values: []string{value}}, err
		}
		return p.numeric(key, c.op)
	}
	return p.set(key)
}

// comparisons in the order in which they must be tried: longer ones first.
var comparisons = []struct {
	sign string
	op   operator
}{
	{"==", opIn}, {"!=", opNotIn}, {"<=", opLessEqual}, {">=", opGreaterEqual},
	{"=", opIn}, {"<", opLess}, {">", opGreater},
}

func (p *parser) numeric(key string, op operator) (condition, error) {
	at := p.pos
	value, err := p.value()
	if err != nil {
		return condition{}, err
	}
	number, err := strconv.ParseFloat(value, 64)
	if err != nil || number != number {
		return condition{}, p.fail(at, "want a number after a comparison")
	}
	return condition{key: key, op: op, number: number}, nil
}

// set reads `in (a, b)` or `not in (a, b)`; without them the key stands alone.
func (p *parser) set(key string) (condition, error) {
	at := p.pos
	op := opIn
	switch word := p.word(); word {
	case "in":
	case "notin":
		op = opNotIn
	case "not":
		p.space()
		if p.word() != "in" {
			return condition{}, p.fail(p.pos, "want \"in\" after \"not\"")
		}
		op = opNotIn
	case "":
		return condition{key: key, op: opHas}, nil
	default:
		return condition{}, p.fail(at, "want one of = != < <= > >=, in, not in, or a comma")
	}
	p.space()
	if !p.take("(") {
		return condition{}, p.fail(p.pos, "want ( before the values")
	}
	t := condition{key: key, op: op}
	for {
		p.space()
		value, err := p.value()
		if err != nil {
			return condition{}, err
		}
		t.values = append(t.values, value)
		p.space()
		if p.take(")") {
			slices.Sort(t.values)
			t.values = slices.Compact(t.values)
			return t, nil
		}
		if !p.take(",") {
			return condition{}, p.fail(p.pos, "want a comma or ) after a value")
		}
	}
}

// value reads a bare or a quoted value.
func (p *parser) value() (string, error) {
	if !p.end() && p.text[p.pos] == '"' {
		quoted, err := strconv.QuotedPrefix(p.text[p.pos:])
		if err != nil {
			return "", p.fail(p.pos, "the quotes are not closed")
		}
		value, err := strconv.Unquote(quoted)
		if err != nil {
			return "", p.fail(p.pos, "the quoted value can't be read")
		}
		p.pos += len(quoted)
		return value, nil
	}
	start := p.pos
	for !p.end() && isValueByte(p.text[p.pos]) {
		p.pos++
	}
	if p.pos == start {
		return "", p.fail(p.pos, "want a value; put quotes around one with other characters than letters, digits and - _ . : / + @ *")
	}
	return p.text[start:p.pos], nil
}

func isKeyByte(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-' || c == '_'
}

func isValueByte(c byte) bool {
	return isKeyByte(c) || strings.IndexByte(".:/+@*", c) >= 0
}
