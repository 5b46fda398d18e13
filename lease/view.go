package lease

// view is an index for one selector: the groups that can be leased, in the
// order of selection, and how many proxies are in each state. It is kept up to
// date at every change, so that an acquire costs the same in a large pool.
//
// A view with a target leaves out the groups that the target blocks.
type view struct {
	selector Selector
	target   string
	// member has a bit for each entry that the selector chooses.
	member []uint64
	counts [dispositions]int
	// heap begins with its first slot at root.
	heap []slot
	// seats are by group.
	seats []seat
	// first and last are the ends of the line.
	first, last int32
	// used is the pool's count of look-ups when the view was last needed.
	used uint64
}

// slot is a group in the heap. The key sorts by active leases, then by the last
// grant; it stands here so that a comparison touches no other memory.
type slot struct {
	key   uint64
	group int32
}

const (
	// seqBits leaves 24 bits for the number of active leases. 2^40 grants are
	// 34 years at a thousand a second.
	seqBits   = 40
	maxActive = 1<<(64-seqBits) - 1
)

func (g *group) order() uint64 {
	return uint64(min(g.active, maxActive))<<seqBits | g.seq&(1<<seqBits-1)
}

func (v *view) has(e *entry) bool {
	word := e.index / 64
	return word < len(v.member) && v.member[word]&(1<<(e.index%64)) != 0
}

// set makes the entry a member, or none.
func (v *view) set(e *entry, member bool) {
	word := e.index / 64
	for len(v.member) <= word {
		v.member = append(v.member, 0)
	}
	if member {
		v.member[word] |= 1 << (e.index % 64)
	} else {
		v.member[word] &^= 1 << (e.index % 64)
	}
}

// grow makes room for the group.
func (v *view) grow(g *group) {
	for len(v.seats) <= g.index {
		v.seats = append(v.seats, seat{pos: nowhere})
	}
}

// place puts the group where it belongs now: into, out of, or elsewhere in the
// line or the heap.
func (v *view) place(p *Pool, g *group) {
	v.grow(g)
	i, key := int32(g.index), g.order()
	s := &v.seats[i]
	wanted := s.usable > 0 && g.open() && (v.target == "" || !g.blockedBy(v.target))
	if wanted && (s.pos == inLine && s.key == key || s.pos >= 0 && v.heap[s.pos].key == key) {
		return
	}
	v.lift(p, i)
	if wanted && !v.join(i, key) {
		v.heap = append(v.heap, slot{})
		v.up(p, int32(len(v.heap)-1), slot{key, i})
	}
}

// lift takes the group out of the line or the heap, wherever it is.
func (v *view) lift(p *Pool, i int32) {
	switch at := v.seats[i].pos; at {
	case nowhere:
	case inLine:
		v.leaveLine(i)
	default:
		v.remove(p, at)
	}
}

// The heap is wide and its first slot stands last in a block, so that the
// children of a slot are one block of memory: what a grant costs in a large pool
// is the memory that it touches, one block for each of log8(n) levels.
const (
	// fan is how many children a slot has: eight slots of 16 bytes are two cache
	// lines, which are fetched together.
	fan  = 8
	root = fan - 1
)

func above(i int32) int32 { return i/fan + fan - 2 }
func below(i int32) int32 { return fan * (i - fan + 2) }

// remove takes the slot at i out of the heap.
func (v *view) remove(p *Pool, i int32) {
	v.seats[v.heap[i].group].pos = nowhere
	last := int32(len(v.heap) - 1)
	s := v.heap[last]
	v.heap = v.heap[:last]
	if i == last {
		return
	}
	if i > root && less(p, s, v.heap[above(i)]) {
		v.up(p, i, s)
	} else {
		v.down(p, i, s)
	}
}

// less is the order of selection. Groups that were never leased have equal
// keys; their names decide.
func less(p *Pool, a, b slot) bool {
	if a.key != b.key {
		return a.key < b.key
	}
	return p.slots[a.group].key < p.slots[b.group].key
}

func (v *view) up(p *Pool, i int32, s slot) {
	for i > root {
		parent := above(i)
		if !less(p, s, v.heap[parent]) {
			break
		}
		v.put(i, v.heap[parent])
		i = parent
	}
	v.put(i, s)
}

func (v *view) down(p *Pool, i int32, s slot) {
	for {
		first := below(i)
		if int(first) >= len(v.heap) {
			break
		}
		children := v.heap[first:min(int(first)+fan, len(v.heap))]
		least := 0
		for c := 1; c < len(children); c++ {
			if less(p, children[c], children[least]) {
				least = c
			}
		}
		if !less(p, children[least], s) {
			break
		}
		v.put(i, children[least])
		i = first + int32(least)
	}
	v.put(i, s)
}

func (v *view) put(i int32, s slot) {
	v.heap[i] = s
	v.seats[s.group].pos = i
}
