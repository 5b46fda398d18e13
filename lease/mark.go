package lease

import "time"

// MarkInfo is an operator's decision about a proxy.
type MarkInfo struct {
	// Mark is what was decided.
	Mark Mark
	// By is who decided: the name of the token.
	By string
	// Reason is what they wrote.
	Reason string
	// At is when.
	At time.Time
}

// maxMarks bounds the decisions that are kept about proxies which have left the
// catalog. Ids of instances do not come back, so the oldest are of no use.
const maxMarks = 10000

// Freeze, drain and unfreeze: SetMark notes the decision. It needs a proxy that
// the pool knows, except for MarkNone. The error is ErrUnknownProxy.
func (p *Pool) SetMark(id string, info MarkInfo) error {
	e := p.entries[id]
	if e == nil && (info.Mark != MarkNone || p.marks[id].Mark == MarkNone) {
		return ErrUnknownProxy
	}
	if p.marks[id].Mark == info.Mark && p.marks[id].Reason == info.Reason {
		return nil
	}
	if info.Mark == MarkNone {
		delete(p.marks, id)
	} else {
		p.marks[id] = info
		p.pruneMarks()
	}
	p.storeMark(id)
	if e != nil {
		p.leave(e)
		e.mark = info.Mark
		p.enter(e)
		p.roomy = true
		p.tellProxy(ProxyChanged, e)
	}
	return nil
}

// pruneMarks drops marks of proxies that are gone, once there are too many.
func (p *Pool) pruneMarks() {
	if len(p.marks) <= maxMarks || !p.loaded {
		return
	}
	for id := range p.marks {
		if p.entries[id] == nil {
			delete(p.marks, id)
			p.storeMark(id)
		}
	}
}
