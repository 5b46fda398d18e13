package lease

import (
	"container/list"
	"context"
	"errors"
	"time"
)

// queue is the acquires that wait, in the order of their arrival.
type queue struct {
	waiters list.List
	classes map[class]*classState
	round   uint64
}

// class is what decides whether an acquire can be served: of one class, who
// came first is served first, and a batch is not overtaken by single ones.
type class struct{ selector, target, session string }

type classState struct {
	size int
	// refused is the round in which the first of the class got nothing.
	refused uint64
}

// waiter is one acquire that waits.
type waiter struct {
	request *Request
	class   class
	place   *list.Element
	answer  chan answer
}

type answer struct {
	leases []Lease
	stored *batch
	err    error
}

func (q *queue) init() { q.classes = map[class]*classState{} }

func classOf(r *Request) class {
	return class{r.Selector.String(), r.Target, r.Session}
}

// add puts the request at the end.
func (q *queue) add(r *Request) *waiter {
	w := &waiter{request: r, class: classOf(r), answer: make(chan answer, 1)}
	w.place = q.waiters.PushBack(w)
	state := q.classes[w.class]
	if state == nil {
		state = &classState{}
		q.classes[w.class] = state
	}
	state.size++
	return w
}

// remove takes the waiter out; false when it is out already.
func (q *queue) remove(w *waiter) bool {
	if w.place == nil {
		return false
	}
	q.waiters.Remove(w.place)
	w.place = nil
	state := q.classes[w.class]
	if state.size--; state.size == 0 {
		delete(q.classes, w.class)
	}
	return true
}

// fail tells every waiter the error.
func (q *queue) fail(err error) {
	for e := q.waiters.Front(); e != nil; e = q.waiters.Front() {
		w := e.Value.(*waiter)
		q.remove(w)
		w.answer <- answer{err: err}
	}
}

// serveWaiting gives what was freed to who waits, in fair order. mu is held.
func (s *Service) serveWaiting() {
	if !s.pool.roomy || s.term == nil {
		return
	}
	s.pool.roomy = false
	q := &s.queue
	q.round++
	var served []*waiter
	var answers []answer
	for e := q.waiters.Front(); e != nil; {
		w := e.Value.(*waiter)
		e = e.Next()
		state := q.classes[w.class]
		if state.refused == q.round {
			continue
		}
		if !s.pool.likely(w.request) {
			state.refused = q.round
			continue
		}
		leases, err := s.pool.Acquire(w.request)
		if isRefusal(err) {
			state.refused = q.round
			continue
		}
		q.remove(w)
		served = append(served, w)
		answers = append(answers, answer{leases: leases, err: err})
	}
	s.pool.roomy = false
	if len(served) == 0 {
		return
	}
	b := s.flush()
	for i, w := range served {
		answers[i].stored = b
		w.answer <- answers[i]
	}
}

// likely is a cheap check that spares an acquire which would be refused.
func (p *Pool) likely(r *Request) bool {
	return r.Session != "" || r.Key != "" || p.pick(r.Selector, r.Target) != nil
}

func isRefusal(err error) bool {
	return errors.Is(err, ErrNoCapacity) || errors.Is(err, ErrNoMatch)
}

// Acquire grants leases, waiting for capacity as long as the request says. The
// errors are those of Pool.Acquire, ErrQueueFull, ErrNoLeader and ErrUncertain.
// When ctx ends while it waits, it leaves the queue and takes nothing.
func (s *Service) Acquire(ctx context.Context, r *Request) (leases []Lease, err error) {
	start := s.clock.Now()
	leases, w, err := s.tryAcquire(ctx, r)
	if w != nil {
		leases, err = s.await(ctx, w, err)
		s.observer.Waited(s.clock.Now().Sub(start))
	}
	s.observer.Acquired(outcomeOf(err), s.clock.Now().Sub(start))
	return leases, err
}

// tryAcquire grants at once, or queues: then the waiter is not nil and err is
// the refusal.
func (s *Service) tryAcquire(ctx context.Context, r *Request) (leases []Lease, w *waiter, err error) {
	s.mu.Lock()
	if s.term == nil {
		s.mu.Unlock()
		return nil, nil, ErrNoLeader
	}
	s.pool.Advance(s.clock.Now())
	s.serveWaiting()
	if s.queue.waiters.Len() > 0 && s.queue.classes[classOf(r)] != nil && s.pool.loaded && s.pool.keys[r.Key] == nil {
		err = s.pool.refuse(r) // who came earlier is served first
	} else {
		leases, err = s.pool.Acquire(r)
	}
	if r.Wait > 0 && isRefusal(err) {
		if s.queue.waiters.Len() >= s.pool.rules.MaxWaiting {
			err = ErrQueueFull
		} else {
			w = s.queue.add(r)
		}
	}
	b := s.flush()
	if w == nil {
		b = s.confirm(b)
	}
	s.rewind()
	s.mu.Unlock()
	if w != nil {
		return nil, w, err
	}
	if werr := b.wait(ctx); werr != nil {
		return nil, nil, werr
	}
	return leases, nil, err
}

// await waits for the answer, the end of the wait or of ctx.
func (s *Service) await(ctx context.Context, w *waiter, refusal error) ([]Lease, error) {
	timer := s.clock.Timer(w.request.Wait)
	defer timer.Stop()
	err := refusal
	var sure *batch
	select {
	case a := <-w.answer:
		return s.settleWait(ctx, w, a)
	case <-timer.C():
		s.mu.Lock()
		if s.term != nil {
			s.pool.Advance(s.clock.Now())
			err = s.pool.refuse(w.request)
			sure = s.confirm(s.flush())
		}
	case <-ctx.Done():
		s.mu.Lock()
		err = context.Cause(ctx)
	}
	removed := s.queue.remove(w)
	s.mu.Unlock()
	if removed {
		if werr := sure.wait(ctx); werr != nil {
			return nil, werr
		}
		return nil, err
	}
	return s.settleWait(ctx, w, <-w.answer)
}

// settleWait waits until the grant is stored. A client that has gone by then,
// and can't come back with its key, gives its leases back.
func (s *Service) settleWait(ctx context.Context, w *waiter, a answer) ([]Lease, error) {
	if a.err != nil {
		return nil, a.err
	}
	err := a.stored.wait(ctx)
	if ctx.Err() != nil && w.request.Key == "" {
		release, cancel := context.WithTimeout(context.WithoutCancel(ctx), giveBack)
		defer cancel()
		for _, l := range a.leases {
			if rerr := s.Release(release, l.ID); rerr != nil {
				break // they expire
			}
		}
		return nil, context.Cause(ctx)
	}
	return a.leases, err
}

// giveBack bounds the effort to return leases that nobody waits for.
const giveBack = 5 * time.Second

// Waiting is how many acquires wait.
func (s *Service) Waiting() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.queue.waiters.Len()
}
