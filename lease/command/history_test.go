package command

import (
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
)

// whatIsWrong logs what is plainly wrong in a history, for a person: the checker
// only says that something is.
func whatIsWrong(t *testing.T, h *history) {
	t.Helper()
	type hold struct {
		proxy                      string
		asked, got, leaving, given int64
	}
	holds := map[string]*hold{}
	for _, op := range h.ops {
		in, out := op.Input.(did), op.Output.(told)
		if in.kind == "acquire" && out.ok {
			holds[out.lease] = &hold{out.proxy, op.Call, op.Return, 1 << 62, 1 << 62}
		}
	}
	for _, op := range h.ops {
		if in := op.Input.(did); in.kind == "release" && holds[in.lease] != nil {
			holds[in.lease].leaving, holds[in.lease].given = op.Call, op.Return
		}
	}
	at := func(n int64) time.Duration { return time.Duration(n).Round(time.Millisecond) }
	for a, x := range holds {
		for b, y := range holds {
			if a < b && x.proxy == y.proxy && x.got < y.leaving && y.got < x.leaving {
				t.Logf("granted twice: %s, %s [%s, %s] and %s [%s, %s]", x.proxy, a, at(x.got), at(x.leaving), b, at(y.got), at(y.leaving))
			}
		}
	}
	shown := 0
	for _, op := range h.ops {
		in, out := op.Input.(did), op.Output.(told)
		if in.kind == "renew" && !out.ok && holds[in.lease].leaving > op.Return {
			t.Logf("forgotten: %s at %s", in.lease, at(op.Call))
		}
		if in.kind == "acquire" && !out.ok && !out.unsure && shown < 5 && !couldBeFull(op, func(f func(proxy string, from, to int64)) {
			for _, x := range holds {
				f(x.proxy, x.asked, x.given)
			}
		}) {
			shown++
			t.Logf("refused by client %d although a slot was free: [%s, %s]", op.ClientId, at(op.Call), at(op.Return))
		}
	}
}

// couldBeFull says whether each of four proxies may have been held at some time
// of the operation.
func couldBeFull(op porcupine.Operation, each func(func(proxy string, from, to int64))) bool {
	busy := map[string]bool{}
	each(func(proxy string, from, to int64) {
		if from < op.Return && to > op.Call {
			busy[proxy] = true
		}
	})
	return len(busy) == 4
}
