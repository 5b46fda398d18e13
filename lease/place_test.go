package lease

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestChangesOfPlacesAreTold(t *testing.T) {
	s := NewService(Config{})
	if _, err := s.Places(); err != ErrNotReady {
		t.Errorf("before the catalog is known: %v", err)
	}
	stream := s.Subscribe(t.Context(), 100)
	place := func(text string) Place { // "id node"
		id, node, _ := strings.Cut(text, " ")
		return Place{ID: id, Node: node, Facts: map[string]string{"f": "1"}}
	}
	var got []string
	for _, texts := range [][]string{{"b x", "a x"}, {"a x", "b x"}, {"b y", "c x", "aa x"}, nil} {
		list := make([]Place, len(texts))
		for i := range texts {
			list[i] = place(texts[i])
		}
		version := s.Version()
		s.SetPlaces(list)
		if s.Version() == version {
			t.Error("the lists keep their version")
		}
		for len(stream) > 0 {
			e := <-stream
			got = append(got, string(e.Kind)+" "+e.Place.ID+" "+e.Place.Node)
		}
	}
	if diff := cmp.Diff([]string{
		"target.added a x", "target.added b x",
		"target.removed a x", "target.added aa x", "target.changed b y", "target.added c x",
		"target.removed aa x", "target.removed b y", "target.removed c x",
	}, got); diff != "" {
		t.Error(diff)
	}
	if list, err := s.Places(); err != nil || len(list) != 0 {
		t.Errorf("at last: %v %v", list, err)
	}
}
