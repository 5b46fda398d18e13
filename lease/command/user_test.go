package command

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"testing"
	"time"

	"github.com/egress-proxies/egress/lease/api"
	"github.com/egress-proxies/egress/lease/leasetest"
)

// definite repeats an operation until its outcome is known.
func definite(t *testing.T, f func() error) (attempts int, err error) {
	for attempts = 1; ; attempts++ {
		err = f()
		var p *api.Problem
		if err == nil || errors.As(err, &p) && p.Status < 500 && p.Code() != "" {
			return attempts, err
		}
		if t.Context().Err() != nil {
			return attempts, err // the test has failed and ends
		}
		if attempts > 200 {
			t.Errorf("no outcome after %d attempts: %v", attempts, err)
			return attempts, err
		}
	}
}

// user acquires, renews and releases through any replica until ctx ends.
func user(ctx context.Context, t *testing.T, h *history, id int, replicas []*replica) {
	random := rand.New(rand.NewPCG(uint64(id), 7))
	any := func() *replica { return replicas[random.IntN(len(replicas))] }
	pause := func() {
		timer := time.NewTimer(time.Duration(5+random.IntN(40)) * time.Millisecond)
		defer timer.Stop()
		<-timer.C
	}
	for n := 0; ctx.Err() == nil; n++ {
		key := fmt.Sprintf("%s-%d-%d", t.Name(), id, n)
		got := h.add(id, did{kind: "acquire"}, func() told {
			var leases []api.Lease
			began := time.Now()
			attempts, err := definite(t, func() (err error) {
				leases, err = any().client.Acquire(context.Background(), api.Acquire{TTL: api.Duration(time.Hour)}, key)
				return err
			})
			if err != nil {
				// The client repeats by itself: a slow attempt may have been
				// several.
				return told{unsure: attempts > 1 || time.Since(began) > time.Second}
			}
			return told{ok: true, lease: leases[0].ID, proxy: leases[0].Proxy}
		})
		pause()
		if !got.ok {
			continue
		}
		for range random.IntN(3) {
			h.add(id, did{"renew", got.lease}, func() told {
				_, err := definite(t, func() error {
					_, err := any().client.Renew(context.Background(), got.lease, 0)
					return err
				})
				return told{ok: err == nil}
			})
			pause()
		}
		h.add(id, did{"release", got.lease}, func() told {
			_, err := definite(t, func() error { return any().client.Release(context.Background(), got.lease) })
			return told{ok: err == nil}
		})
		pause()
	}
}

// leaderOf asks the replicas who leads.
func leaderOf(t *testing.T, replicas []*replica) *replica {
	t.Helper()
	var found *replica
	quick := &http.Client{Timeout: 200 * time.Millisecond}
	leasetest.Until(t, time.Minute, "there is a leader", func() error {
		for _, r := range replicas {
			response, err := quick.Get("http://" + r.address + api.PathReady)
			if err != nil {
				continue
			}
			var ready api.Ready
			err = json.NewDecoder(response.Body).Decode(&ready)
			response.Body.Close()
			if err == nil && ready.Ready && ready.Role == "leader" {
				found = r
				return nil
			}
		}
		return errors.New("none says that it leads")
	})
	return found
}
