package lease

import "time"

// alarm is a moment at which something in the pool changes by itself. It is
// embedded in what changes.
type alarm struct {
	at  time.Duration
	pos int
	own ringer
}

// ringer is what an alarm belongs to.
type ringer interface {
	// ring is called once the alarm's moment has come. The alarm is not set
	// any more; ring may set it again.
	ring(p *Pool)
}

// alarms is a heap of the alarms that are set, the earliest first. Moments
// count from the pool's epoch, on the monotonic clock.
type alarms struct{ heap []alarmSlot }

// alarmSlot repeats the moment, so that a comparison touches no other memory.
type alarmSlot struct {
	at time.Duration
	a  *alarm
}

// unset is the position of an alarm that is not in the heap.
const unset = -1

// set makes the alarm ring at the moment, instead of any earlier setting.
func (h *alarms) set(a *alarm, at time.Duration) {
	a.at = at
	s := alarmSlot{at, a}
	if a.pos == unset {
		h.heap = append(h.heap, s)
		h.up(len(h.heap)-1, s)
		return
	}
	if i := a.pos; i > 0 && at < h.heap[(i-1)/arity].at {
		h.up(i, s)
	} else {
		h.down(i, s)
	}
}

// stop takes the alarm out; it may be unset already.
func (h *alarms) stop(a *alarm) {
	i := a.pos
	if i == unset {
		return
	}
	a.pos = unset
	last := len(h.heap) - 1
	s := h.heap[last]
	h.heap[last] = alarmSlot{}
	h.heap = h.heap[:last]
	if i == last {
		return
	}
	if i > 0 && s.at < h.heap[(i-1)/arity].at {
		h.up(i, s)
	} else {
		h.down(i, s)
	}
}

// next is the earliest moment; ok is false when nothing is set.
func (h *alarms) next() (at time.Duration, ok bool) {
	if len(h.heap) == 0 {
		return 0, false
	}
	return h.heap[0].at, true
}

// due takes one alarm out whose moment has come by now; nil when there is none.
func (h *alarms) due(now time.Duration) *alarm {
	if len(h.heap) == 0 || h.heap[0].at > now {
		return nil
	}
	a := h.heap[0].a
	h.stop(a)
	return a
}

// arity of the heap of alarms: four slots of 16 bytes are one cache line.
const arity = 4

func (h *alarms) up(i int, s alarmSlot) {
	for i > 0 {
		parent := (i - 1) / arity
		if h.heap[parent].at <= s.at {
			break
		}
		h.put(i, h.heap[parent])
		i = parent
	}
	h.put(i, s)
}

func (h *alarms) down(i int, s alarmSlot) {
	for {
		first := i*arity + 1
		if first >= len(h.heap) {
			break
		}
		least := first
		for c := first + 1; c < min(first+arity, len(h.heap)); c++ {
			if h.heap[c].at < h.heap[least].at {
				least = c
			}
		}
		if s.at <= h.heap[least].at {
			break
		}
		h.put(i, h.heap[least])
		i = least
	}
	h.put(i, s)
}

func (h *alarms) put(i int, s alarmSlot) {
	h.heap[i] = s
	s.a.pos = i
}
