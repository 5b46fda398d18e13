package lease

// Most groups that could be leased carry no lease, and come back to a view in
// about the order in which they left it. Those stand in a line, from the one that
// was leased longest ago: taking the first and adding a last touch the same few
// lines of memory however large the pool is. All others are in the view's heap.

// seat is what a view knows of a group.
type seat struct {
	// key is the group's order when it joined the line.
	key uint64
	// usable counts the members that could be leased themselves.
	usable uint32
	// pos is its place in the heap, or nowhere, or inLine.
	pos int32
	// before and after are its neighbours in the line, or nowhere.
	before, after int32
}

const (
	nowhere = -1
	inLine  = -2
	// lineSteps is how far from the end of the line a place is looked for. A
	// group that was leased long ago goes into the heap.
	lineSteps = 16
)

// top is the group that is to be leased next, or nowhere.
func (v *view) top(p *Pool) int32 {
	first, heaped := v.first, len(v.heap) > root
	switch {
	case heaped && (first == nowhere || less(p, v.heap[root], slot{v.seats[first].key, first})):
		return v.heap[root].group
	default:
		return first
	}
}

// join puts the group where its key belongs in the line; false when it is no
// group for the line. Keys in the line differ: of two that are equal, as those of
// all groups that were never leased, the names decide, which the heap knows.
func (v *view) join(i int32, key uint64) bool {
	if key == 0 || key>>seqBits != 0 {
		return false
	}
	at := v.last
	for step := 0; at != nowhere && v.seats[at].key >= key; step++ {
		if step == lineSteps || v.seats[at].key == key {
			return false
		}
		at = v.seats[at].before
	}
	s := &v.seats[i]
	s.key, s.pos, s.before, s.after = key, inLine, at, v.first
	if at != nowhere {
		s.after = v.seats[at].after
	}
	*v.next(at), *v.prev(s.after) = i, i
	return true
}

// leaveLine takes the group out of the line.
func (v *view) leaveLine(i int32) {
	s := &v.seats[i]
	*v.next(s.before), *v.prev(s.after) = s.after, s.before
	s.pos = nowhere
}

// next is where the one after the group is noted; of nowhere, the first.
func (v *view) next(i int32) *int32 {
	if i == nowhere {
		return &v.first
	}
	return &v.seats[i].after
}

// prev is where the one before the group is noted; of nowhere, the last.
func (v *view) prev(i int32) *int32 {
	if i == nowhere {
		return &v.last
	}
	return &v.seats[i].before
}
