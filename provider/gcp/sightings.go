package gcp

import (
	"strconv"
	"sync"
	"time"

	"github.com/egress-proxies/egress/provider"
)

// sightings are the last states that were seen, so that what one part of the
// plugin has learned costs another no call.
type sightings struct {
	mu   sync.Mutex // guards what follows
	last map[string]sighting
	ends chan struct{} // closed when one is seen to have ended
}

type sighting struct {
	instance provider.Instance
	at       time.Time
}

// maxSightings bounds the memory; a node runs far fewer machines.
const maxSightings = 4096

func (s *sightings) note(instance provider.Instance) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.last == nil || len(s.last) >= maxSightings {
		s.last = make(map[string]sighting)
	}
	s.last[instance.Name] = sighting{instance, time.Now()}
	if instance.State == provider.Stopped && s.ends != nil {
		close(s.ends)
		s.ends = nil
	}
}

// ending is closed when the next machine ends, whichever it is.
func (s *sightings) ending() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ends == nil {
		s.ends = make(chan struct{})
	}
	return s.ends
}

// parseID is the inverse of how an id is shown; 0 is none.
func parseID(text string) uint64 {
	id, _ := strconv.ParseUint(text, 10, 64)
	return id
}

func (s *sightings) forget(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.last, name)
}

// recent gives a machine that was on its way a moment ago.
func (s *sightings) recent(ref provider.Ref, age time.Duration) (provider.Instance, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	last, ok := s.last[ref.Name]
	ok = ok && last.instance.State == provider.Provisioning && time.Since(last.at) < age &&
		(ref.Zone == "" || ref.Zone == last.instance.Zone)
	return last.instance, ok
}

// ended gives the reason of an end that was seen before.
func (s *sightings) ended(name string, id uint64) (reason string, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	last, ok := s.last[name]
	return last.instance.Reason, ok && last.instance.State == provider.Stopped && last.instance.ID == strconv.FormatUint(id, 10)
}

// state is the last one that is younger than age.
func (s *sightings) state(name string, age time.Duration) (provider.State, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	last, ok := s.last[name]
	return last.instance.State, ok && time.Since(last.at) < age
}

// stops are the machines that this process has asked to shut down. Any other
// that stops has ended against our will.
type stops struct {
	mu  sync.Mutex // guards ids
	ids map[uint64]time.Time
}

// stopsKept is how long a stop is remembered; a shutdown takes 90 s at most.
const stopsKept = time.Hour

func (s *stops) note(id uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ids == nil {
		s.ids = make(map[uint64]time.Time)
	}
	for other, at := range s.ids {
		if time.Since(at) > stopsKept {
			delete(s.ids, other)
		}
	}
	s.ids[id] = time.Now()
}

func (s *stops) asked(id uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, ok := s.ids[id]
	return ok
}
