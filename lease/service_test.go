package lease_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/egress-proxies/egress/lease"
)

// The tests here run in bubbles of testing/synctest: time passes when every
// goroutine waits, and Wait returns once they do.

func healthy(id string, max int) *lease.Proxy {
	return &lease.Proxy{ID: id, Address: "10.0.0.1", Port: 3128, MaxLeases: max, Healthy: true, Attributes: map[string]string{"name": id}}
}

// serve runs a service that leads with the store until the test ends.
func serve(t *testing.T, store lease.Store, proxies ...*lease.Proxy) *lease.Service {
	s := lease.NewService(lease.Config{})
	if proxies != nil {
		s.SetProxies(proxies)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.Run(ctx)
	}()
	resign, _ := s.Lead(store, nil)
	t.Cleanup(func() {
		cancel()
		<-done
		resign()
	})
	return s
}

func acquire(ctx context.Context, s *lease.Service, ask lease.Ask) ([]lease.Lease, error) {
	r, err := s.Rules().NewRequest(ask)
	if err != nil {
		return nil, err
	}
	return s.Acquire(ctx, r)
}

func must(t *testing.T, s *lease.Service, ask lease.Ask) lease.Lease {
	t.Helper()
	leases, err := acquire(t.Context(), s, ask)
	if err != nil {
		t.Fatal(err)
	}
	return leases[0]
}

func TestWaitingAcquiresAreServedInTheOrderOfTheirArrival(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := serve(t, nil, healthy("a", 1))
		held := must(t, s, lease.Ask{TTL: time.Hour})
		var order []int
		var group sync.WaitGroup
		for i := range 5 {
			group.Go(func() {
				leases, err := acquire(t.Context(), s, lease.Ask{Wait: time.Minute, TTL: time.Hour})
				if err != nil {
					t.Error(err)
					return
				}
				order = append(order, i)
				_ = s.Release(t.Context(), leases[0].ID)
			})
			synctest.Wait()
		}
		if _, err := acquire(t.Context(), s, lease.Ask{}); !errors.Is(err, lease.ErrNoCapacity) {
			t.Errorf("an acquire that does not wait: %v", err)
		}
		_ = s.Release(t.Context(), held.ID)
		group.Wait()
		if fmt.Sprint(order) != "[0 1 2 3 4]" {
			t.Errorf("served in the order %v", order)
		}
	})
}

func TestSingleAcquiresDoNotOvertakeABatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := serve(t, nil, healthy("a", 1), healthy("b", 1))
		first, second := must(t, s, lease.Ask{TTL: time.Hour}), must(t, s, lease.Ask{TTL: time.Hour})
		got := make(chan int, 1)
		go func() {
			leases, _ := acquire(t.Context(), s, lease.Ask{Count: 2, Wait: time.Minute})
			got <- len(leases)
		}()
		synctest.Wait()
		_ = s.Release(t.Context(), first.ID)
		if _, err := acquire(t.Context(), s, lease.Ask{}); !errors.Is(err, lease.ErrNoCapacity) {
			t.Errorf("overtook the batch: %v", err)
		}
		_ = s.Release(t.Context(), second.ID)
		if n := <-got; n != 2 {
			t.Errorf("the batch got %d", n)
		}
	})
}

func TestWaitEndsWithItsDeadlineAndTakesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := serve(t, nil, healthy("a", 1))
		held := must(t, s, lease.Ask{TTL: time.Hour})
		began := time.Now()
		_, err := acquire(t.Context(), s, lease.Ask{Wait: 7 * time.Second})
		if took := time.Since(began); !errors.Is(err, lease.ErrNoCapacity) || took != 7*time.Second {
			t.Errorf("%v after %s", err, took)
		}
		_ = s.Release(t.Context(), held.ID)
		must(t, s, lease.Ask{})
	})
}

func TestWaitingAcquireVanishesWithItsClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := serve(t, nil, healthy("a", 1))
		held := must(t, s, lease.Ask{TTL: time.Hour})
		ctx, leave := context.WithCancel(t.Context())
		got := make(chan error, 1)
		go func() {
			_, err := acquire(ctx, s, lease.Ask{Wait: time.Minute})
			got <- err
		}()
		synctest.Wait()
		leave()
		if err := <-got; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		if s.Waiting() != 0 {
			t.Errorf("%d wait", s.Waiting())
		}
		_ = s.Release(t.Context(), held.ID)
		must(t, s, lease.Ask{})
	})
}

// Case 22: nobody calls the service, and yet the slot comes back in time.
func TestSlotComesBackAtTheTTLByItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := serve(t, nil, healthy("a", 1))
		must(t, s, lease.Ask{TTL: 10 * time.Second})
		began := time.Now()
		must(t, s, lease.Ask{Wait: time.Minute})
		if took := time.Since(began); took != 10*time.Second {
			t.Errorf("the slot came back after %s", took)
		}
	})
}

func TestEverythingThatFreesCapacityServesWhoWaits(t *testing.T) {
	frozen := lease.MarkInfo{Mark: lease.MarkFreeze}
	for name, test := range map[string]struct {
		before, free func(*lease.Service, lease.Lease)
	}{
		"release": {nil, func(s *lease.Service, l lease.Lease) { _ = s.Release(context.Background(), l.ID) }},
		"a further proxy": {nil, func(s *lease.Service, _ lease.Lease) {
			s.SetProxies([]*lease.Proxy{healthy("a", 1), healthy("b", 1)})
		}},
		"a larger limit": {nil, func(s *lease.Service, _ lease.Lease) { s.SetProxies([]*lease.Proxy{healthy("a", 2)}) }},
		"unfreeze": {func(s *lease.Service, l lease.Lease) {
			_, _ = s.Mark(context.Background(), "a", frozen)
			_ = s.Release(context.Background(), l.ID)
		}, func(s *lease.Service, _ lease.Lease) { _, _ = s.Mark(context.Background(), "a", lease.MarkInfo{}) }},
		"the end of a cooldown": {func(s *lease.Service, l lease.Lease) {
			_, _ = s.Report(context.Background(), l.ID, lease.Failed, "")
			_ = s.Release(context.Background(), l.ID)
		}, func(*lease.Service, lease.Lease) { time.Sleep(10 * time.Second) }},
		"credentials": {func(s *lease.Service, l lease.Lease) {
			p := healthy("a", 1)
			p.Auth = "crawl"
			s.SetProxies([]*lease.Proxy{p})
			_ = s.Release(context.Background(), l.ID)
		}, func(s *lease.Service, _ lease.Lease) {
			s.SetCredentials(func(name string) bool { return name == "crawl" })
		}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := serve(t, nil, healthy("a", 1))
				l := must(t, s, lease.Ask{TTL: time.Hour})
				if test.before != nil {
					test.before(s, l)
				}
				got := make(chan error, 1)
				go func() {
					_, err := acquire(t.Context(), s, lease.Ask{Wait: time.Minute})
					got <- err
				}()
				synctest.Wait()
				if s.Waiting() != 1 {
					t.Fatalf("%d wait, want 1", s.Waiting())
				}
				began := time.Now()
				test.free(s, l)
				if err := <-got; err != nil || time.Since(began) > 10*time.Second {
					t.Errorf("%v after %s", err, time.Since(began))
				}
			})
		})
	}
}

// Case 21, in one process.
func TestParallelAcquiresGetDifferentProxies(t *testing.T) {
	const n = 50
	var proxies []*lease.Proxy
	for i := range n {
		proxies = append(proxies, healthy(fmt.Sprint("p", i), 1))
	}
	s := serve(t, nil, proxies...)
	got := make(chan string, n)
	for range n {
		go func() {
			leases, err := acquire(t.Context(), s, lease.Ask{})
			if err != nil {
				t.Error(err)
				got <- ""
				return
			}
			got <- leases[0].Proxy.ID
		}()
	}
	seen := map[string]bool{}
	for range n {
		seen[<-got] = true
	}
	if len(seen) != n {
		t.Errorf("%d different proxies, want %d", len(seen), n)
	}
}

// Case 24: with one of three proxies banned, the others carry no more than they
// may and the excess waits.
func TestExcessWaitsWhenAProxyIsBannedUnderLoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := serve(t, nil, healthy("a", 2), healthy("b", 2), healthy("c", 2))
		ask := lease.Ask{Target: "site.example", Wait: 5 * time.Minute, TTL: time.Minute}
		banned := must(t, s, ask)
		if _, err := s.Report(t.Context(), banned.ID, lease.Blocked, ""); err != nil {
			t.Fatal(err)
		}
		var mu sync.Mutex
		active, most := map[string]int{}, map[string]int{}
		var group sync.WaitGroup
		for range 12 {
			group.Go(func() {
				leases, err := acquire(t.Context(), s, ask)
				if err != nil {
					t.Error(err)
					return
				}
				l := leases[0]
				mu.Lock()
				active[l.Proxy.ID]++
				most[l.Proxy.ID] = max(most[l.Proxy.ID], active[l.Proxy.ID])
				mu.Unlock()
				time.Sleep(time.Second)
				mu.Lock()
				active[l.Proxy.ID]--
				mu.Unlock()
				_ = s.Release(t.Context(), l.ID)
			})
		}
		began := time.Now()
		group.Wait()
		if took := time.Since(began); took != 3*time.Second {
			t.Errorf("12 uses of a second on 4 slots took %s", took)
		}
		if most[banned.Proxy.ID] != 0 || len(most) != 2 {
			t.Errorf("most at once: %v; %s is banned", most, banned.Proxy.ID)
		}
		for id, n := range most {
			if n > 2 {
				t.Errorf("%s carried %d", id, n)
			}
		}
	})
}

func TestQueueIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := lease.NewService(lease.Config{Rules: lease.Rules{MaxWaiting: 1}})
		s.SetProxies([]*lease.Proxy{healthy("a", 1)})
		resign, _ := s.Lead(nil, nil)
		must(t, s, lease.Ask{})
		got := make(chan error, 1)
		go func() {
			_, err := acquire(t.Context(), s, lease.Ask{Wait: time.Minute})
			got <- err
		}()
		synctest.Wait()
		if _, err := acquire(t.Context(), s, lease.Ask{Wait: time.Minute}); !errors.Is(err, lease.ErrQueueFull) {
			t.Error(err)
		}
		resign()
		if err := <-got; !errors.Is(err, lease.ErrNoLeader) {
			t.Errorf("who waited when the leader resigned: %v", err)
		}
	})
}
