package consul

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/egress-proxies/egress/lease"
	"github.com/egress-proxies/egress/lease/leasetest"
)

// BenchmarkDurable compares acquire and release, stored in Consul, with what
// group commit allows on the same Consul: transactions a second, one after the
// other, times the changes that fit into one. The rate of changes should be at
// least half of that bound.
func BenchmarkDurable(b *testing.B) {
	consul := leasetest.StartConsul(b)
	b.Run("bound", func(b *testing.B) {
		s, end := lead(b, consul, "bound/")
		defer end()
		changes := make([]lease.Change, maxOps-2)
		value := make([]byte, 330) // about a lease's record
		for i := range changes {
			changes[i] = lease.Change{Key: fmt.Sprintf("leases/%d", i), Value: value}
		}
		n := 0
		for b.Loop() {
			// Half are written and half deleted, as acquires and releases do.
			for i := range changes {
				changes[i].Value = value
				if (i+n)%2 == 0 {
					changes[i].Value = nil
				}
			}
			n++
			if err := s.Commit(context.Background(), changes); err != nil {
				b.Fatal(err)
			}
		}
		b.ReportMetric(float64(n*len(changes))/b.Elapsed().Seconds(), "changes/s")
	})
	b.Run("acquire+release", func(b *testing.B) {
		s, end := lead(b, consul, "service/")
		defer end()
		service := lease.NewService(lease.Config{})
		service.SetProxies([]*lease.Proxy{{ID: "a", Address: "10.0.0.1", Port: 1, Healthy: true, Attributes: map[string]string{"country": "DE"}}})
		resign, _ := service.Lead(s, nil)
		defer resign()
		r, err := service.Rules().NewRequest(lease.Ask{Selector: "country=DE", Target: "site.example", TTL: time.Hour})
		if err != nil {
			b.Fatal(err)
		}
		const clients = 512
		each := max(1, b.N/clients)
		b.ResetTimer()
		var group sync.WaitGroup
		for range clients {
			group.Go(func() {
				for range each {
					leases, err := service.Acquire(context.Background(), r)
					if err == nil {
						err = service.Release(context.Background(), leases[0].ID)
					}
					if err != nil {
						b.Error(err)
						return
					}
				}
			})
		}
		group.Wait()
		b.ReportMetric(float64(2*each*clients)/b.Elapsed().Seconds(), "changes/s")
	})
}

// lead takes the lock below the prefix.
func lead(b *testing.B, consul *leasetest.Consul, prefix string) (*store, func()) {
	b.Helper()
	e := NewElector(ElectorConfig{Client: consul.Client, Prefix: prefix, ID: "bench", Address: "http://127.0.0.1:1"})
	if err := e.register(context.Background()); err != nil {
		b.Fatal(err)
	}
	session, _, err := e.open(context.Background(), true)
	if err != nil {
		b.Fatal(err)
	}
	if _, err := e.lock(context.Background(), session); err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	term := make(chan struct{})
	go func() {
		defer close(term)
		go e.heartbeats(ctx)
		e.keepAlive(ctx, session, func(error) {})
	}()
	s := &store{client: consul.Client, prefix: prefix, session: session, logger: e.Logger, ended: ctx}
	if _, err := s.load(context.Background()); err != nil {
		b.Fatal(err)
	}
	return s, func() {
		cancel()
		<-term
		e.close(session)
		e.deregister()
	}
}
