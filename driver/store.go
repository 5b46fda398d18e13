package driver

import (
	"context"
	"sync"
)

// store has the tasks of this process, and makes sure that one caller at a time
// changes what is in a slot.
type store struct {
	mu      sync.Mutex // guards the maps
	tasks   map[string]*handle
	slots   map[slot]*handle
	working map[slot]*work
}

func newStore() *store {
	return &store{tasks: make(map[string]*handle), slots: make(map[slot]*handle), working: make(map[slot]*work)}
}

// work is a start, a destroy or a collection under way in a slot.
type work struct {
	slot   slot
	id     string // the task id it serves
	start  bool
	cancel context.CancelCauseFunc
	done   chan struct{}

	// started and err are the outcome of a start, valid after done.
	started *handle
	err     error
}

// task gives the task of an id, or nil.
func (s *store) task(id string) *handle {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.tasks[id]
}

// all are the tasks.
func (s *store) all() []*handle {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := make([]*handle, 0, len(s.tasks))
	for _, h := range s.tasks {
		list = append(list, h)
	}
	return list
}

// add puts a recovered task in; it is false when the id is there already.
func (s *store) add(h *handle) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.tasks[h.cfg.ID] != nil {
		return false
	}
	s.tasks[h.cfg.ID], s.slots[h.slot] = h, h
	return true
}

// begin makes the caller the one who starts id in its slot. When the id runs
// already, or is being started, that task or work is returned instead. Any
// other work in the slot is cancelled and waited for, until ctx ends.
func (s *store) begin(ctx context.Context, mine *work) (running *handle, joined *work, err error) {
	for {
		s.mu.Lock()
		if h := s.tasks[mine.id]; h != nil {
			s.mu.Unlock()
			return h, nil, nil
		}
		other := s.working[mine.slot]
		if other == nil {
			s.working[mine.slot] = mine
			s.mu.Unlock()
			return nil, nil, nil
		}
		s.mu.Unlock()
		if other.start && other.id == mine.id {
			return nil, other, nil
		}
		other.cancel(errSuperseded)
		if err := other.wait(ctx); err != nil {
			return nil, nil, err
		}
	}
}

// beginDestroy makes the caller the one who destroys id. It is not ok when the
// slot is another invocation's by now, whose instance has the same name. A
// start of the id is cancelled and waited for.
func (s *store) beginDestroy(ctx context.Context, mine *work) (ok bool, err error) {
	for {
		s.mu.Lock()
		other, resident := s.working[mine.slot], s.slots[mine.slot]
		switch {
		case other != nil && other.start && other.id != mine.id, resident != nil && resident.cfg.ID != mine.id:
			s.mu.Unlock()
			return false, nil
		case other == nil:
			s.working[mine.slot] = mine
			s.mu.Unlock()
			return true, nil
		}
		s.mu.Unlock()
		if other.start {
			other.cancel(errDestroyed)
		}
		if err := other.wait(ctx); err != nil {
			return false, err
		}
	}
}

// beginCollect makes the caller the one who deletes what nobody wants in a
// slot; it is not ok while somebody works there or a task lives there.
func (s *store) beginCollect(mine *work) (ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	resident := s.slots[mine.slot]
	if s.working[mine.slot] != nil || resident != nil && !resident.isStopping() {
		return false
	}
	s.working[mine.slot] = mine
	return true
}

// end finishes work. A start that worked puts its task into the slot.
func (s *store) end(mine *work) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.working, mine.slot)
	if mine.started != nil {
		s.tasks[mine.id], s.slots[mine.slot] = mine.started, mine.started
	}
	close(mine.done)
}

// resident is the task in a slot, or nil.
func (s *store) resident(slot slot) *handle {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.slots[slot]
}

// busy is true when a task or work is in a slot.
func (s *store) busy(slot slot) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.slots[slot] != nil || s.working[slot] != nil
}

// remove forgets a task.
func (s *store) remove(h *handle) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.tasks, h.cfg.ID)
	if s.slots[h.slot] == h {
		delete(s.slots, h.slot)
	}
}

// newWork is work that ends with ctx or with its own cancel.
func newWork(ctx context.Context, slot slot, id string, start bool) (context.Context, *work) {
	ctx, cancel := context.WithCancelCause(ctx)
	return ctx, &work{slot: slot, id: id, start: start, cancel: cancel, done: make(chan struct{})}
}

func (w *work) wait(ctx context.Context) error {
	select {
	case <-w.done:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
