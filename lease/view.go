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
	// usable counts, by group, the members that could be leased themselves.
	usable []uint32
	counts [dispositions]int
	heap   []slot
	// pos is, by group, its place in the heap; -1 for none.
	pos []int32
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

// grow makes room for the group in the arrays.
func (v *view) grow(g *group) {
	for len(v.pos) <= g.index {
		v.pos = append(v.pos, -1)
		v.usable = append(v.usable, 0)
	}
}

// place puts the group where it belongs now: into, out of, or elsewhere in the
// heap.
func (v *view) place(p *Pool, g *group) {
	v.grow(g)
	at := v.pos[g.index]
	wanted := v.usable[g.index] > 0 && g.open() && (v.target == "" || !g.blockedBy(v.target))
	switch {
	case wanted && at < 0:
		v.heap = append(v.heap, slot{})
		v.up(p, len(v.heap)-1, slot{g.order(), int32(g.index)})
	case wanted:
		s := slot{g.order(), int32(g.index)}
		if s.key < v.heap[at].key {
			v.up(p, int(at), s)
		} else if s.key > v.heap[at].key {
			v.down(p, int(at), s)
		}
	case at >= 0:
		v.remove(p, int(at))
	}
}

// remove takes the slot at i out of the heap.
func (v *view) remove(p *Pool, i int) {
	v.pos[v.heap[i].group] = -1
	last := len(v.heap) - 1
	s := v.heap[last]
	v.heap = v.heap[:last]
	if i == last {
		return
	}
	if i > 0 && less(p, s, v.heap[(i-1)/arity]) {
		v.up(p, i, s)
	} else {
		v.down(p, i, s)
	}
}

// arity of the heap: four slots of 16 bytes are one cache line.
const arity = 4

// less is the order of selection. Groups that were never leased have equal
// keys; their names decide.
func less(p *Pool, a, b slot) bool {
	if a.key != b.key {
		return a.key < b.key
	}
	return p.slots[a.group].key < p.slots[b.group].key
}

func (v *view) up(p *Pool, i int, s slot) {
	for i > 0 {
		parent := (i - 1) / arity
		if !less(p, s, v.heap[parent]) {
			break
		}
		v.put(i, v.heap[parent])
		i = parent
	}
	v.put(i, s)
}

func (v *view) down(p *Pool, i int, s slot) {
	for {
		first := i*arity + 1
		if first >= len(v.heap) {
			break
		}
		least := first
		for c := first + 1; c < min(first+arity, len(v.heap)); c++ {
			if less(p, v.heap[c], v.heap[least]) {
				least = c
			}
		}
		if !less(p, v.heap[least], s) {
			break
		}
		v.put(i, v.heap[least])
		i = least
	}
	v.put(i, s)
}

func (v *view) put(i int, s slot) {
	v.heap[i] = s
	v.pos[s.group] = int32(i)
}
