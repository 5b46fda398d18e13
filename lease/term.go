package lease

import (
	"context"
	"fmt"
	"time"
)

// term is one leadership. Changes are stored in the order in which they were
// decided, all that gathered during a commit in the next one.
type term struct {
	store Store
	// next gathers the changes that the next commit stores.
	next *batch
	// flight is being stored.
	flight *batch
	// work says that next is not empty.
	work   chan struct{}
	cancel context.CancelCauseFunc
	done   chan struct{}
}

// batch is what one commit stores.
type batch struct {
	changes []Change
	events  []Event
	done    chan struct{}
	err     error
}

// wait returns once the batch is stored. A nil batch is stored already.
func (b *batch) wait(ctx context.Context) error {
	if b == nil {
		return nil
	}
	select {
	case <-b.done:
		return b.err
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", ErrUncertain, context.Cause(ctx))
	}
}

// Lead makes the service decide from now on, with what the records say. Without
// a store it decides for itself alone. The returned function gives the
// leadership up: it lets the commit in flight end, and returns when nothing
// will be stored any more. lost is closed when the store failed.
func (s *Service) Lead(store Store, records []Record) (resign func(), lost <-chan struct{}) {
	ctx, cancel := context.WithCancelCause(context.Background())
	t := &term{store: store, work: make(chan struct{}, 1), cancel: cancel, done: make(chan struct{})}
	s.mu.Lock()
	s.pool.durable = store != nil
	s.pool.Advance(s.clock.Now())
	for _, err := range s.pool.Load(records) {
		s.logger.Error("skipped a stored record", "error", err)
	}
	s.term = t
	s.serveWaiting()
	s.flush()
	s.rewind()
	s.mu.Unlock()
	failed := make(chan struct{})
	go s.commitAll(ctx, t, failed)
	return func() {
		s.stepDown(t, ErrNoLeader)
		<-t.done
	}, failed
}

// stepDown ends the term: who waits is told why. Nothing that is not in flight
// will be stored.
func (s *Service) stepDown(t *term, why error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.term != t {
		return
	}
	s.term = nil
	if t.next != nil {
		t.next.err = why
		close(t.next.done)
		t.next = nil
	}
	s.queue.fail(why)
	s.pool.durable = false
	s.pool.Load(nil)
	s.pool.changes = nil
	s.events = nil
	t.cancel(why)
}

// flush hands the pool's changes to the term. It returns the batch that must be
// stored before anybody may be told of the pool's present state; nil when that
// is stored already. mu is held.
func (s *Service) flush() *batch {
	s.version.Store(s.pool.version)
	changes, events := s.pool.TakeChanges(), s.events
	s.events = nil
	t := s.term
	if t == nil || t.store == nil {
		s.publish(events)
		return nil
	}
	if len(changes) == 0 && t.next == nil {
		if t.flight == nil {
			s.publish(events)
			return nil
		}
		t.flight.events = append(t.flight.events, events...)
		return t.flight
	}
	if t.next == nil {
		t.next = &batch{done: make(chan struct{})}
		select {
		case t.work <- struct{}{}:
		default:
		}
	}
	t.next.changes = append(t.next.changes, changes...)
	t.next.events = append(t.next.events, events...)
	return t.next
}

// confirm gives a decision that changed nothing something to wait for: a commit
// that starts after it, and that only a leader can make. Without that, a leader
// that was deposed and has not noticed yet would call a lease unknown that its
// successor has granted. stored is what flush returned. mu is held.
func (s *Service) confirm(stored *batch) *batch {
	t := s.term
	if t == nil || t.store == nil || stored != nil && stored == t.next {
		return stored
	}
	t.next = &batch{done: make(chan struct{})}
	select {
	case t.work <- struct{}{}:
	default:
	}
	return t.next
}

// commitAll stores batch after batch until the term ends.
func (s *Service) commitAll(ctx context.Context, t *term, failed chan<- struct{}) {
	defer close(t.done)
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.work:
		}
		s.mu.Lock()
		b := t.next
		t.next, t.flight = nil, b
		s.mu.Unlock()
		if b == nil {
			continue
		}
		start := time.Now()
		// A term that is given up lets its last commit end: who waits for it
		// then knows the outcome.
		err := t.store.Commit(context.WithoutCancel(ctx), b.changes)
		if len(b.changes) > 0 || err != nil {
			s.observer.Committed(len(b.changes), time.Since(start), err)
		}
		s.mu.Lock()
		t.flight = nil
		if err == nil {
			s.publish(b.events)
		}
		s.mu.Unlock()
		if err != nil {
			b.err = fmt.Errorf("%w: %w", ErrUncertain, err)
			if len(b.changes) == 0 { // Nothing was decided that counts.
				b.err = fmt.Errorf("%w: %w", ErrNoLeader, err)
			}
			close(b.done)
			s.logger.Warn("gave up leading: the store failed", "error", err)
			s.stepDown(t, ErrNoLeader)
			close(failed)
			return
		}
		close(b.done)
	}
}

// Leading is true while this service decides.
func (s *Service) Leading() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.term != nil
}
