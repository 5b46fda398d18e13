package lease_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/egress-proxies/egress/lease"
)

// slowStore keeps records, takes its time, and fails on order.
type slowStore struct {
	mu      sync.Mutex
	delay   time.Duration
	records map[string][]byte
	commits int
	fail    error
}

func (s *slowStore) Commit(_ context.Context, changes []lease.Change) error {
	time.Sleep(s.delay)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fail != nil {
		return s.fail
	}
	s.commits++
	if s.records == nil {
		s.records = map[string][]byte{}
	}
	for _, c := range changes {
		if c.Value == nil {
			delete(s.records, c.Key)
		} else {
			s.records[c.Key] = c.Value
		}
	}
	return nil
}

func (s *slowStore) has(key string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.records[key] != nil
}

func (s *slowStore) list() (records []lease.Record) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for key, value := range s.records {
		records = append(records, lease.Record{Key: key, Value: value})
	}
	return records
}

func TestAnswerComesAfterTheCommitAndCommitsAreShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &slowStore{delay: time.Second}
		s := serve(t, store, healthy("a", 0))
		var group sync.WaitGroup
		for range 100 {
			group.Go(func() {
				began := time.Now()
				l := must(t, s, lease.Ask{})
				if took := time.Since(began); took < time.Second || took > 2*time.Second {
					t.Errorf("answered after %s", took)
				}
				if !store.has("leases/" + l.ID) {
					t.Error("answered before it was stored")
				}
			})
		}
		group.Wait()
		if store.commits > 3 {
			t.Errorf("%d commits for 100 acquires at once", store.commits)
		}
	})
}

func TestFailedCommitEndsTheLeadershipAndGrantsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &slowStore{delay: time.Second}
		s := lease.NewService(lease.Config{})
		s.SetProxies([]*lease.Proxy{healthy("a", 1)})
		_, lost := s.Lead(store, nil)
		store.fail = errors.New("the session is gone")
		got := make(chan error, 2)
		for range 2 {
			go func() {
				_, err := acquire(t.Context(), s, lease.Ask{Wait: time.Minute})
				got <- err
			}()
			synctest.Wait()
		}
		for range 2 {
			if err := <-got; !errors.Is(err, lease.ErrUncertain) && !errors.Is(err, lease.ErrNoLeader) {
				t.Error(err)
			}
		}
		<-lost
		if s.Leading() {
			t.Error("still leads")
		}
		if _, err := acquire(t.Context(), s, lease.Ask{}); !errors.Is(err, lease.ErrNoLeader) {
			t.Error(err)
		}
	})
}

// Case 22, across a change of the leader: a lease lives on, and ends within its
// ttl and a tick.
func TestNewLeaderGoesOnWithWhatWasStored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &slowStore{}
		first := serve(t, store, healthy("a", 1), healthy("b", 1), healthy("c", 1))
		began := time.Now()
		l := must(t, first, lease.Ask{TTL: 30 * time.Second, Session: "s", Mode: "hard", Target: "x.example", Key: "k"})
		other := must(t, first, lease.Ask{TTL: time.Hour, Target: "x.example"})
		if _, err := first.Report(t.Context(), other.ID, lease.Blocked, ""); err != nil {
			t.Fatal(err)
		}
		if _, err := first.Mark(t.Context(), "c", lease.MarkInfo{Mark: lease.MarkFreeze, By: "me"}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Second)

		second := lease.NewService(lease.Config{})
		second.SetProxies([]*lease.Proxy{healthy("a", 1), healthy("b", 1), healthy("c", 1)})
		resign, _ := second.Lead(store, store.list())
		defer resign()
		var refusal *lease.Refusal
		if _, err := acquire(t.Context(), second, lease.Ask{}); !errors.As(err, &refusal) ||
			refusal.Counts != (lease.Counts{Matching: 3, AtCapacity: 2, Frozen: 1}) {
			t.Errorf("after the change: %v", err)
		}
		if again := must(t, second, lease.Ask{TTL: 30 * time.Second, Session: "s", Mode: "hard", Target: "x.example", Key: "k"}); again.ID != l.ID {
			t.Error("the idempotency key was forgotten")
		}
		if cooling, _ := second.Cooldowns(t.Context()); len(cooling) != 1 || cooling[0].Remaining != 50*time.Second {
			t.Errorf("cooldowns %+v", cooling)
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go func() { _ = second.Run(ctx) }()
		must(t, second, lease.Ask{Wait: time.Minute})
		if took := time.Since(began); took < 30*time.Second || took > 31*time.Second {
			t.Errorf("the slot came back after %s, want 30 s and at most a tick", took)
		}
	})
}

func FuzzRecords(f *testing.F) {
	store := &slowStore{}
	s := lease.NewService(lease.Config{})
	s.SetProxies([]*lease.Proxy{healthy("a", 1)})
	resign, _ := s.Lead(store, nil)
	r, _ := s.Rules().NewRequest(lease.Ask{Session: "s", Target: "x.example", Selector: "name=a", Key: "k"})
	leases, err := s.Acquire(context.Background(), r)
	if err != nil {
		f.Fatal(err)
	}
	_, _ = s.Report(context.Background(), leases[0].ID, lease.Blocked, "")
	_, _ = s.Mark(context.Background(), "a", lease.MarkInfo{Mark: lease.MarkDrain})
	resign()
	for key, value := range store.records {
		f.Add(key, value)
	}
	f.Fuzz(func(t *testing.T, key string, value []byte) {
		s := lease.NewService(lease.Config{})
		s.SetProxies([]*lease.Proxy{healthy("a", 1)})
		resign, _ := s.Lead(nil, []lease.Record{{Key: key, Value: value}, {Key: key, Value: value}})
		defer resign()
		if _, err := s.Leases(t.Context()); err != nil {
			t.Fatal(err)
		}
		s.SetProxies(nil)
		s.SetProxies([]*lease.Proxy{healthy("a", 1)})
		s.Stats()
	})
}

// A leader that was deposed knows neither what its successor has granted nor
// what it has freed: it answers nothing, not even a refusal.
func TestDeposedLeaderRefusesNothingFromMemory(t *testing.T) {
	for name, ask := range map[string]func(context.Context, *lease.Service) error{
		"no capacity": func(ctx context.Context, s *lease.Service) error {
			_, err := acquire(ctx, s, lease.Ask{})
			return err
		},
		"no capacity after a wait": func(ctx context.Context, s *lease.Service) error {
			_, err := acquire(ctx, s, lease.Ask{Wait: time.Second})
			return err
		},
		"unknown lease": func(ctx context.Context, s *lease.Service) error {
			_, err := s.Renew(ctx, "successors", 0)
			return err
		},
		"release of an unknown lease": func(ctx context.Context, s *lease.Service) error {
			return s.Release(ctx, "successors")
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := &slowStore{}
				s := serve(t, store, healthy("a", 1))
				must(t, s, lease.Ask{TTL: time.Minute})
				store.mu.Lock()
				store.fail = errors.New("another process leads")
				store.mu.Unlock()
				if err := ask(t.Context(), s); !errors.Is(err, lease.ErrNoLeader) {
					t.Errorf("err = %v, want that another one is to be asked", err)
				}
			})
		})
	}
}
