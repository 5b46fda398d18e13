package command

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/egress-proxies/egress/lease/api"
	"github.com/egress-proxies/egress/lease/leasetest"
)

// What clients do, and what they are told.
type (
	did struct {
		kind  string // acquire, renew, release
		lease string // what is renewed or released
	}
	told struct {
		ok    bool
		lease string
		proxy string
		// unsure is set for a refusal after an attempt whose outcome nobody
		// knows: a lease may be left that nobody has.
		unsure bool
	}
)

// slots is the model: proxies of capacity one, and the leases on them. Its state
// is "proxy=lease;…", sorted by proxy.
func slots(proxies []string) porcupine.Model {
	get := func(state, proxy string) string {
		for _, part := range strings.Split(state, ";") {
			if p, l, _ := strings.Cut(part, "="); p == proxy {
				return l
			}
		}
		return ""
	}
	put := func(state, proxy, lease string) string {
		var parts []string
		for _, p := range proxies {
			l := get(state, p)
			if p == proxy {
				l = lease
			}
			parts = append(parts, p+"="+l)
		}
		return strings.Join(parts, ";")
	}
	holder := func(state, lease string) string {
		for _, p := range proxies {
			if get(state, p) == lease {
				return p
			}
		}
		return ""
	}
	return porcupine.Model{
		Init: func() any { return put("", "", "") },
		Step: func(s, in, out any) (bool, any) {
			state, i, o := s.(string), in.(did), out.(told)
			switch {
			case i.kind == "acquire" && o.ok: // never two leases on one slot
				return get(state, o.proxy) == "", put(state, o.proxy, o.lease)
			case i.kind == "acquire":
				return o.unsure || holder(state, "") == "", state
			case i.kind == "renew": // a lease that was granted is known until it is released
				return o.ok == (holder(state, i.lease) != ""), state
			default:
				if p := holder(state, i.lease); p != "" {
					state = put(state, p, "")
				}
				return true, state
			}
		},
		DescribeOperation: func(in, out any) string { return fmt.Sprintf("%+v %+v", in, out) },
	}
}

// history is what all clients did.
type history struct {
	mu    sync.Mutex
	start time.Time
	ops   []porcupine.Operation
	// longest is the longest time that an operation took.
	longest time.Duration
}

func (h *history) add(client int, in did, f func() told) told {
	call := time.Since(h.start)
	out := f()
	end := time.Since(h.start)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.longest = max(h.longest, end-call)
	h.ops = append(h.ops, porcupine.Operation{ClientId: client, Input: in, Call: call.Nanoseconds(), Output: out, Return: end.Nanoseconds()})
	return out
}

// definite repeats an operation until its outcome is known.
func definite(t *testing.T, f func() error) (attempts int, err error) {
	for attempts = 1; ; attempts++ {
		err = f()
		var p *api.Problem
		if err == nil || errors.As(err, &p) && p.Status < 500 && p.Code() != "" {
			return attempts, err
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

// Nothing granted is forgotten, and no slot is granted twice, whatever happens
// to the leader and to Consul. EGRESS_FAULT_ROUNDS makes it longer.
func TestHistoryIsLinearizableUnderFaults(t *testing.T) {
	if testing.Short() {
		t.Skip("takes a minute")
	}
	consul := leasetest.StartConsul(t)
	proxies := []string{"p0", "p1", "p2", "p3"}
	for i, id := range proxies {
		consul.Proxy(id, "127.0.0.1", 3000+i, "", nil)
	}
	var replicas []*replica
	for range 3 {
		replicas = append(replicas, newReplica(t, consul, "--store", "consul"))
	}
	for _, r := range replicas {
		r.ready()
	}
	h := &history{start: time.Now()}
	ctx, stop := context.WithCancel(t.Context())
	var users sync.WaitGroup
	for id := range 6 {
		users.Go(func() { user(ctx, t, h, id, replicas) })
	}
	// recovered measures how long it is until the service grants again.
	recovered := func(what string, fault func()) {
		fault()
		began := time.Now()
		_, _ = definite(t, func() error {
			_, err := leaderOf(t, replicas).client.Acquire(t.Context(), api.Acquire{Selector: "!instance"}, "")
			return err
		})
		t.Logf("%-28s answers again after %s", what, time.Since(began).Round(10*time.Millisecond))
	}
	settle := func(d time.Duration) { <-time.After(d) }
	rounds, _ := strconv.Atoi(os.Getenv("EGRESS_FAULT_ROUNDS"))
	for range max(rounds, 1) {
		settle(time.Second)
		leader := leaderOf(t, replicas)
		recovered("leader killed", leader.kill)
		leader.start()
		leader.ready()
		settle(time.Second)

		leader = leaderOf(t, replicas)
		recovered("leader stopped in order", leader.stop)
		leader.start()
		leader.ready()
		settle(time.Second)

		leader = leaderOf(t, replicas)
		recovered("leader paused", func() { leader.signal(syscall.SIGSTOP) })
		settle(time.Second)
		leader.signal(syscall.SIGCONT)
		settle(2 * time.Second)

		recovered("Consul killed and started", func() {
			consul.Kill()
			settle(time.Second)
			consul.Start()
		})
		settle(time.Second)

		recovered("Consul paused for 3 s", func() {
			consul.Signal(syscall.SIGSTOP)
			settle(3 * time.Second)
			consul.Signal(syscall.SIGCONT)
		})
	}
	settle(time.Second)
	stop()
	users.Wait()
	verdict(t, h, slots(proxies))
	kvInProportion(t, consul, len(proxies))
}

// verdict asks the checker.
func verdict(t *testing.T, h *history, model porcupine.Model) {
	t.Helper()
	counts := map[string]int{}
	for _, op := range h.ops {
		kind := op.Input.(did).kind
		if !op.Output.(told).ok {
			kind += " refused"
		}
		counts[kind]++
	}
	result := porcupine.CheckOperationsTimeout(model, h.ops, 2*time.Minute)
	t.Logf("%d operations %v, the longest took %s: %s", len(h.ops), counts, h.longest.Round(time.Millisecond), result)
	if result != porcupine.Ok {
		t.Errorf("the history is not linearizable: %s", result)
		whatIsWrong(t, h)
	}
	if counts["acquire"] < 50 || counts["renew"] < 20 || counts["acquire refused"] < 5 {
		t.Errorf("the history says too little: %v", counts)
	}
}

// kvInProportion checks that only live leases are kept: all were released, but
// for those that nobody was told of.
func kvInProportion(t *testing.T, consul *leasetest.Consul, limit int) {
	t.Helper()
	keys, _, err := consul.Client.KV().Keys("egress/lease/records/", "", nil)
	if err != nil {
		t.Fatal(err)
	}
	if len(keys) > limit {
		t.Errorf("%d records are left: %v", len(keys), keys)
	}
}
