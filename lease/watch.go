package lease

import "context"

// subscription is somebody who listens to events.
type subscription struct {
	ch chan Event
}

// Subscribe gives the events from now on, until ctx ends or the reader falls
// more than buffer events behind; then the channel is closed. A reader that
// fell behind lists again.
func (s *Service) Subscribe(ctx context.Context, buffer int) <-chan Event {
	sub := &subscription{ch: make(chan Event, buffer)}
	s.mu.Lock()
	s.subs[sub] = struct{}{}
	s.pool.listen = func(e Event) { s.events = append(s.events, e) }
	s.mu.Unlock()
	context.AfterFunc(ctx, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.unsubscribe(sub)
	})
	return sub.ch
}

// unsubscribe closes the channel once. mu is held.
func (s *Service) unsubscribe(sub *subscription) {
	if _, ok := s.subs[sub]; !ok {
		return
	}
	delete(s.subs, sub)
	close(sub.ch)
	if len(s.subs) == 0 {
		s.pool.listen = nil
		s.events = nil
	}
}

// publish sends the events to who listens, and drops who is too slow. mu is
// held.
func (s *Service) publish(events []Event) {
	for _, e := range events {
		for sub := range s.subs {
			select {
			case sub.ch <- e:
			default:
				s.unsubscribe(sub)
			}
		}
	}
}
