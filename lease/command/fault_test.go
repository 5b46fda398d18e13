package command

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	consul "github.com/hashicorp/consul/api"

	"github.com/egress-proxies/egress/lease/api"
	"github.com/egress-proxies/egress/lease/leasetest"
)

// stage is three replicas on three servers of Consul: each replica talks to the
// server of its own number, over a link that can be cut.
type stage struct {
	t        *testing.T
	consuls  leasetest.Consuls
	links    []*leasetest.Link
	replicas []*replica
	proxies  []string
}

func newStage(t *testing.T) *stage {
	t.Helper()
	const size, slots = 3, 4
	s := &stage{t: t, consuls: leasetest.StartConsuls(t, size)}
	s.proxies = s.consuls.Fleet(slots)
	for i := range size {
		link := leasetest.NewLink(t, s.consuls[i].Address)
		s.links = append(s.links, link)
		s.replicas = append(s.replicas, newReplica(t, link.Address, "--store", "consul"))
	}
	for _, r := range s.replicas {
		r.ready()
	}
	return s
}

// leader waits until one of the replicas holds the lock and says that it leads.
func (s *stage) leader() (leader *replica) {
	s.t.Helper()
	leasetest.Until(s.t, time.Minute, "a replica leads", func() error {
		pair, err := s.lock()
		if err != nil {
			return err
		}
		for _, r := range s.replicas {
			if !strings.Contains(string(pair.Value), r.address) {
				continue
			}
			if ready, err := r.readiness(); err != nil || ready.Role != "leader" {
				return fmt.Errorf("%s has the lock and says %+v, %w", r.address, ready, err)
			}
			leader = r
			return nil
		}
		return fmt.Errorf("the lock is with %s", pair.Value)
	})
	return leader
}

// lock reads the lock through any server that answers.
func (s *stage) lock() (pair *consul.KVPair, err error) {
	for _, c := range s.consuls {
		ctx, cancel := context.WithTimeout(s.t.Context(), 2*time.Second)
		pair, _, err = c.Client.KV().Get("egress/lease/leader", (&consul.QueryOptions{RequireConsistent: true}).WithContext(ctx))
		cancel()
		switch {
		case err != nil:
		case pair == nil || pair.Session == "":
			err = errors.New("the lock is free")
		default:
			return pair, nil
		}
	}
	return nil, err
}

// index is the number of a replica, of its server and of its link.
func (s *stage) index(r *replica) int { return slices.Index(s.replicas, r) }

func (s *stage) others(r *replica) []*replica {
	return slices.DeleteFunc(slices.Clone(s.replicas), func(x *replica) bool { return x == r })
}

// again makes the fault and logs for how long nothing was answered through the
// replicas: the longest time that a client of them waited. With a deposed leader
// it goes on until another one leads.
func (s *stage) again(what string, deposed *replica, through []*replica, fault func()) {
	s.t.Helper()
	began := time.Now()
	fault()
	var longest time.Duration
	for changed := deposed == nil; ; {
		asked := time.Now()
		leasetest.Until(s.t, time.Minute, what+": a request is decided", func() error {
			return through[rand.IntN(len(through))].decides()
		})
		longest = max(longest, time.Since(asked))
		if changed {
			break
		}
		pair, err := s.lock()
		changed = err == nil && !strings.Contains(string(pair.Value), deposed.address)
	}
	s.t.Logf("%-44s nothing was decided for %5.2f s, all well after %5.2f s", what, longest.Seconds(), time.Since(began).Seconds())
}

// decides says whether a request is decided through this replica: no proxy
// matches, which only a leader may say.
func (r *replica) decides() error {
	response, err := patient.Post("http://"+r.address+api.PathLeases, "application/json", strings.NewReader(`{"selector":"!instance"}`))
	if err != nil {
		return err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusConflict {
		err = fmt.Errorf("%s: %s", response.Status, text)
	}
	return err
}

// patient outlasts the fifteen seconds that a replica waits for a leader, twice.
var patient = &http.Client{Timeout: 40 * time.Second}

// readiness is what the replica says of itself.
func (r *replica) readiness() (ready api.Ready, err error) {
	quick := &http.Client{Timeout: 2 * time.Second}
	response, err := quick.Get("http://" + r.address + api.PathReady)
	if err != nil {
		return ready, err
	}
	defer response.Body.Close()
	return ready, json.NewDecoder(response.Body).Decode(&ready)
}

// follows waits until the replica knows who leads.
func (s *stage) follows(r *replica) {
	s.t.Helper()
	leasetest.Until(s.t, time.Minute, r.address+" knows the leader", func() error {
		ready, err := r.readiness()
		if err != nil {
			return err
		}
		if leader := s.leader(); !strings.HasSuffix(ready.Leader, leader.address) || (ready.Role == "leader") != (r == leader) {
			return fmt.Errorf("%+v, and %s leads", ready, leader.address)
		}
		return nil
	})
}

// use lets six users go on until stop, and records what they do.
func (s *stage) use() (h *history, stop func()) {
	h = &history{start: time.Now()}
	ctx, cancel := context.WithCancel(s.t.Context())
	var users sync.WaitGroup
	for id := range 6 {
		users.Go(func() { user(ctx, s.t, h, id, s.replicas) })
	}
	stop = func() { cancel(); users.Wait() }
	s.t.Cleanup(stop)
	return h, stop
}

func settle(d time.Duration) { <-time.After(d) }

// faults are what can happen to the service and to Consul. Each ends with
// everything as it was.
var faults = []struct {
	name string
	make func(s *stage, name string)
}{
	{"leader killed", func(s *stage, name string) {
		leader := s.leader()
		s.again(name, leader, s.others(leader), leader.kill)
		leader.start()
		s.follows(leader)
	}},
	{"leader stopped in order", func(s *stage, name string) {
		leader := s.leader()
		s.again(name, leader, s.others(leader), func() { leader.signal(syscall.SIGTERM) })
		leader.ended()
		leader.start()
		s.follows(leader)
	}},
	{"leader paused", func(s *stage, name string) {
		leader := s.leader()
		s.again(name, leader, s.others(leader), func() { leader.signal(syscall.SIGSTOP) })
		settle(time.Second)
		leader.signal(syscall.SIGCONT)
		s.follows(leader)
	}},
	{"leader cut off from Consul", func(s *stage, name string) {
		leader := s.leader()
		link := s.links[s.index(leader)]
		s.again(name, leader, s.others(leader), link.Cut)
		settle(2 * time.Second) // it thinks still that it leads, and is asked
		link.Heal()
		s.follows(leader)
	}},
	{"follower cut off from Consul", func(s *stage, name string) {
		follower := s.others(s.leader())[0]
		link := s.links[s.index(follower)]
		s.again(name, nil, []*replica{follower}, link.Cut)
		settle(6 * time.Second) // its session ends
		s.again(name+", for a while", nil, []*replica{follower}, func() {})
		link.Heal()
		s.follows(follower)
	}},
	{"Consul's leader killed", func(s *stage, name string) {
		victim := s.consuls.Leader()
		s.again(s.named(name, victim), nil, s.others(s.user(victim)), victim.Kill)
		victim.Start()
		s.leader()
	}},
	{"Consul's leader paused", func(s *stage, name string) {
		victim := s.consuls.Leader()
		s.again(s.named(name, victim), nil, s.others(s.user(victim)), func() { victim.Signal(syscall.SIGSTOP) })
		settle(time.Second)
		victim.Signal(syscall.SIGCONT)
		s.leader()
	}},
	{"server of Consul killed that the leader uses", func(s *stage, name string) {
		leader := s.leader()
		victim := s.consuls[s.index(leader)]
		s.again(s.named(name, victim), leader, s.others(leader), victim.Kill)
		victim.Start()
		s.follows(leader)
	}},
	{"all of Consul killed, and started", func(s *stage, name string) {
		s.again(name, nil, s.replicas, func() {
			s.consuls.Kill()
			settle(time.Second)
			s.consuls.Start()
		})
		s.leader()
	}},
}

// user is the replica that uses a server.
func (s *stage) user(server *leasetest.Consul) *replica {
	return s.replicas[slices.Index(s.consuls, server)]
}

// named says what else the server is.
func (s *stage) named(name string, victim *leasetest.Consul) string {
	if strings.HasPrefix(name, "Consul's") && s.leader() == s.user(victim) {
		name += ", which the leader uses"
	}
	return name
}

// Nothing granted is forgotten, and no slot is granted twice, whatever happens
// to the leader and to Consul. EGRESS_FAULT_ROUNDS makes it longer.
func TestHistoryIsLinearizableUnderFaults(t *testing.T) {
	if testing.Short() {
		t.Skip("takes a minute")
	}
	t.Parallel() // most of it is waiting
	s := newStage(t)
	rounds, _ := strconv.Atoi(os.Getenv("EGRESS_FAULT_ROUNDS"))
	for range max(rounds, 1) {
		h, stop := s.use()
		for _, fault := range faults {
			settle(500 * time.Millisecond)
			fault.make(s, fault.name)
		}
		settle(500 * time.Millisecond)
		stop()
		counts := verdict(t, h, slots(s.proxies))
		if counts["acquire"] < 50 || counts["renew"] < 20 || counts["acquire refused"] < 5 {
			t.Errorf("the history says too little: %v", counts)
		}
		kvInProportion(t, s.consuls[0], len(s.proxies))
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
