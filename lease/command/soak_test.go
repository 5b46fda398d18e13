package command

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/egress-proxies/egress/lease/leasetest"
)

// footprint is what a replica takes when nobody asks it anything.
type footprint struct{ goroutines, megabytes float64 }

// footprint reads it from the metrics.
func (r *replica) footprint() (f footprint, err error) {
	text, err := r.metrics()
	if err != nil {
		return f, err
	}
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		number, _ := strconv.ParseFloat(value, 64)
		switch name {
		case "go_goroutines":
			f.goroutines = number
		case "process_resident_memory_bytes":
			f.megabytes = number / (1 << 20)
		}
	}
	if f.goroutines == 0 || f.megabytes == 0 {
		err = fmt.Errorf("%s: the metrics lack goroutines or memory", r.address)
	}
	return f, err
}

// largest is the most that one of the replicas takes, once all are within the
// limits; a zero limit is none.
func (s *stage) largest(limit footprint) (most footprint) {
	s.t.Helper()
	leasetest.Until(s.t, time.Minute, fmt.Sprintf("no replica takes more than %+v", limit), func() error {
		http.DefaultClient.CloseIdleConnections()
		most = footprint{}
		for _, r := range s.replicas {
			f, err := r.footprint()
			if err != nil {
				return err
			}
			most.goroutines, most.megabytes = max(most.goroutines, f.goroutines), max(most.megabytes, f.megabytes)
		}
		if limit.goroutines > 0 && most.goroutines > limit.goroutines || limit.megabytes > 0 && most.megabytes > limit.megabytes {
			return fmt.Errorf("%+v", most)
		}
		return nil
	})
	return most
}

// returnAll gives back what is left of leases whose acquire nobody knows the end
// of, and wants nothing in Consul after that but the lock and the last commit.
func (s *stage) returnAll() (left int) {
	s.t.Helper()
	leader := s.leader()
	leases, err := leader.client.Leases(s.t.Context())
	if err != nil {
		s.t.Fatal(err)
	}
	for _, l := range leases {
		if err := leader.client.Release(s.t.Context(), l.ID); err != nil {
			s.t.Fatal(err)
		}
	}
	keys, _, err := s.consuls.Leader().Client.KV().Keys("egress/lease/", "", nil)
	if err != nil {
		s.t.Fatal(err)
	}
	if len(keys) > 2 {
		s.t.Errorf("without a lease there are %d keys: %v", len(keys), keys)
	}
	return len(leases)
}

// Minutes of random faults leave the service as large as it was. `make e2e-full`
// runs it; EGRESS_SOAK=1h makes it longer.
func TestSoakUnderRandomFaults(t *testing.T) {
	length, err := time.ParseDuration(os.Getenv("EGRESS_SOAK"))
	if err != nil {
		if length = 5 * time.Minute; os.Getenv("EGRESS_E2E_FULL") == "" {
			t.Skip("takes minutes; make e2e-full runs it")
		}
	}
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	s := newStage(t)
	var limit footprint
	for began := time.Now(); time.Since(began) < length && !t.Failed(); {
		h, stop := s.use()
		for range 4 {
			settle(time.Duration(random.IntN(1000)) * time.Millisecond)
			fault := faults[random.IntN(len(faults))]
			fault.make(s, fault.name)
		}
		settle(time.Second)
		stop()
		verdict(t, h, slots(s.proxies))
		left := s.returnAll()
		most := s.largest(limit)
		t.Logf("after %s: %d leases that nobody knew, at most %.0f goroutines and %.0f MiB a replica",
			time.Since(began).Round(time.Second), left, most.goroutines, most.megabytes)
		if limit.goroutines == 0 {
			// What the first round left, and a connection or two more; memory that
			// was freed goes back to the system in its own time.
			limit = footprint{most.goroutines + 20, 1.5 * most.megabytes}
		}
	}
}
