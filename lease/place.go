package lease

import (
	"maps"
	"slices"
	"strings"
)

// Place is where proxies are launched, as one node sees it: a hypervisor, a
// project, an API server, or the node itself. The API and the driver call it a
// target, which in this package is a site that is visited.
type Place struct {
	// ID is unique and stays the same.
	ID string
	// Provider, Type and Name say which it is.
	Provider, Type, Name string
	// Node is who sees it so.
	Node string
	// State says whether proxies can be launched there.
	State PlaceState
	// Reason is one word for the state.
	Reason string
	// Advice says what a person does about it; may be empty.
	Advice string
	// Facts are what the node knows of it, such as pool_available_gib.
	Facts map[string]string
}

// PlaceState says whether proxies can be launched in a place.
type PlaceState string

// The states of a place.
const (
	// PlaceReady: they can.
	PlaceReady PlaceState = "ready"
	// PlaceNotReady: they can't, for the reason that is given.
	PlaceNotReady PlaceState = "not_ready"
	// PlaceSilent: the node has not been heard of, so that nobody knows.
	PlaceSilent PlaceState = "silent"
)

func (p *Place) equal(o *Place) bool {
	return p.ID == o.ID && p.Provider == o.Provider && p.Type == o.Type && p.Name == o.Name && p.Node == o.Node &&
		p.State == o.State && p.Reason == o.Reason && p.Advice == o.Advice && maps.Equal(p.Facts, o.Facts)
}

// places are those that are known, by id.
type places struct {
	// known is false until the catalog has answered.
	known bool
	list  []Place
}

// SetPlaces takes what the catalog says of all places. The list is the service's
// from then on.
func (s *Service) SetPlaces(list []Place) {
	slices.SortFunc(list, func(a, b Place) int { return strings.Compare(a.ID, b.ID) })
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.places.list
	s.places = places{known: true, list: list}
	s.pool.version++
	if len(s.subs) > 0 {
		s.events = append(s.events, placeEvents(before, list)...)
	}
	s.flush()
}

// placeEvents is what changed; both lists are sorted by id.
func placeEvents(before, after []Place) (events []Event) {
	for len(before) > 0 || len(after) > 0 {
		switch {
		case len(after) == 0 || len(before) > 0 && before[0].ID < after[0].ID:
			events = append(events, Event{Kind: PlaceRemoved, Place: &before[0]})
			before = before[1:]
		case len(before) == 0 || after[0].ID < before[0].ID:
			events = append(events, Event{Kind: PlaceAdded, Place: &after[0]})
			after = after[1:]
		default:
			if !before[0].equal(&after[0]) {
				events = append(events, Event{Kind: PlaceChanged, Place: &after[0]})
			}
			before, after = before[1:], after[1:]
		}
	}
	return events
}

// Places are all places, by id. They must not be changed. The error is
// ErrNotReady as long as they are unknown.
func (s *Service) Places() ([]Place, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.places.known {
		return nil, ErrNotReady
	}
	return s.places.list, nil
}
