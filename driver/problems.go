package driver

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/egress-proxies/egress/driver/probe"
)

// maxDuration keeps sums and multiples of durations, such as a TTL of three
// intervals, from overflowing. Nothing here takes a year.
const maxDuration = 365 * 24 * time.Hour

// problems collects everything that is wrong with a configuration, so that a
// person meets all of it at once. Each names the key, the value and what is
// expected. The values of secret keys are never among them.
type problems struct {
	prefix string
	list   *[]string
}

func newProblems() *problems { return &problems{list: new([]string)} }

// in is for the keys of an inner block, whose name precedes them.
func (p *problems) in(block string) *problems {
	return &problems{prefix: p.prefix + block + ": ", list: p.list}
}

// add notes a wrong value; want says what is expected.
func (p *problems) add(key, value, want string) {
	*p.list = append(*p.list, fmt.Sprintf("%s%s %q: %s", p.prefix, key, value, want))
}

// missing notes a value that must be given.
func (p *problems) missing(key, want string) {
	*p.list = append(*p.list, fmt.Sprintf("%s%s is missing: %s", p.prefix, key, want))
}

// note adds what another validation found.
func (p *problems) note(err error) {
	if err != nil {
		*p.list = append(*p.list, p.prefix+err.Error())
	}
}

// err is nil when nothing is wrong. It is one line, because an event of a task
// is one.
func (p *problems) err() error {
	if len(*p.list) == 0 {
		return nil
	}
	return errors.New(strings.Join(*p.list, "; "))
}

// The readers below parse a value that may not have been given (nil), in which
// case they give the default.

func (p *problems) text(value *string, or string) string {
	if value == nil {
		return or
	}
	return *value
}

func (p *problems) yes(key string, value *string, or bool) bool {
	if value == nil {
		return or
	}
	parsed, err := scalar(*value, kindBool)
	if err != nil {
		p.add(key, *value, err.Error())
		return or
	}
	return parsed.(bool)
}

func (p *problems) whole(key string, value *string, or, least, most int) int {
	if value == nil {
		return or
	}
	parsed, err := strconv.Atoi(*value)
	if err != nil || parsed < least || parsed > most {
		p.add(key, *value, fmt.Sprintf("want a whole number from %d to %d", least, most))
		return or
	}
	return parsed
}

func (p *problems) duration(key string, value *string, or, least time.Duration) time.Duration {
	if value == nil || *value == "" {
		return or
	}
	parsed, err := time.ParseDuration(*value)
	switch {
	case err != nil:
		p.add(key, *value, `want a duration with its unit, such as "30s" or "5m"`)
	case parsed < least:
		p.add(key, *value, fmt.Sprintf("want at least %v", least))
	case parsed > maxDuration:
		p.add(key, *value, fmt.Sprintf("want at most %v", maxDuration))
	default:
		return parsed
	}
	return or
}

// webURL checks an http or https URL that is fetched through a proxy.
func (p *problems) webURL(key, value string) {
	if err := probe.CheckURL(value); err != nil {
		p.note(fmt.Errorf("%s: %w", key, err))
	}
}
