package command

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
)

// What clients do, and what they are told.
type (
	did struct {
		kind  string // acquire, renew, release
		lease string // what is renewed or released
	}
	told struct {
		ok    bool
		lease string
		proxy string
		// unsure is set for a refusal after an attempt whose outcome nobody
		// knows: a lease may be left that nobody has.
		unsure bool
	}
)

// slots is the model: proxies of capacity one, and the leases on them. Its state
// is "proxy=lease;…", sorted by proxy.
func slots(proxies []string) porcupine.Model {
	get := func(state, proxy string) string {
		for _, part := range strings.Split(state, ";") {
			if p, l, _ := strings.Cut(part, "="); p == proxy {
				return l
			}
		}
		return ""
	}
	put := func(state, proxy, lease string) string {
		var parts []string
		for _, p := range proxies {
			l := get(state, p)
			if p == proxy {
				l = lease
			}
			parts = append(parts, p+"="+l)
		}
		return strings.Join(parts, ";")
	}
	holder := func(state, lease string) string {
		for _, p := range proxies {
			if get(state, p) == lease {
				return p
			}
		}
		return ""
	}
	return porcupine.Model{
		Init: func() any { return put("", "", "") },
		Step: func(s, in, out any) (bool, any) {
			state, i, o := s.(string), in.(did), out.(told)
			switch {
			case i.kind == "acquire" && o.ok: // never two leases on one slot
				return get(state, o.proxy) == "", put(state, o.proxy, o.lease)
			case i.kind == "acquire":
				return o.unsure || holder(state, "") == "", state
			case i.kind == "renew": // a lease that was granted is known until it is released
				return o.ok == (holder(state, i.lease) != ""), state
			default:
				if p := holder(state, i.lease); p != "" {
					state = put(state, p, "")
				}
				return true, state
			}
		},
		DescribeOperation: func(in, out any) string { return fmt.Sprintf("%+v %+v", in, out) },
	}
}

// history is what all clients did.
type history struct {
	mu    sync.Mutex
	start time.Time
	ops   []porcupine.Operation
	// longest is the longest time that an operation took.
	longest time.Duration
}

func (h *history) add(client int, in did, f func() told) told {
	call := time.Since(h.start)
	out := f()
	end := time.Since(h.start)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.longest = max(h.longest, end-call)
	h.ops = append(h.ops, porcupine.Operation{ClientId: client, Input: in, Call: call.Nanoseconds(), Output: out, Return: end.Nanoseconds()})
	return out
}

// verdict asks the checker. It returns how often what was done.
func verdict(t *testing.T, h *history, model porcupine.Model) (counts map[string]int) {
	t.Helper()
	counts = map[string]int{}
	for _, op := range h.ops {
		kind := op.Input.(did).kind
		if !op.Output.(told).ok {
			kind += " refused"
		}
		counts[kind]++
	}
	result := porcupine.CheckOperationsTimeout(model, h.ops, 2*time.Minute)
	t.Logf("%d operations %v, the longest took %s: %s", len(h.ops), counts, h.longest.Round(time.Millisecond), result)
	if result != porcupine.Ok {
		t.Errorf("the history is not linearizable: %s", result)
		whatIsWrong(t, h)
	}
	return counts
}
