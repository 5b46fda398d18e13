package consul

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/egress-proxies/egress/lease"
)

// flapping is a Consul with n instances of which one changes at every step.
type flapping struct {
	mu     sync.Mutex
	index  uint64
	moved  chan struct{}
	bodies [2][]byte
}

func newFlapping(n int) *flapping {
	f := &flapping{index: 1, moved: make(chan struct{})}
	for i, status := range []string{"passing", "critical"} {
		list := make([]map[string]any, n)
		for j := range list {
			check := "passing"
			if j == n/2 {
				check = status
			}
			id := fmt.Sprintf("eg-%06d", j)
			list[j] = map[string]any{
				"Node": map[string]any{"Node": "n1", "Address": "10.0.0.1"},
				"Service": map[string]any{"ID": "egress-" + id, "Address": "10.0.0.1", "Port": 3128, "Tags": []string{"egress"},
					"Meta": map[string]string{"instance": id, "provider": "kvm", "zone": "a", "max_leases": "1", "job": "fleet",
						"exit_ip": fmt.Sprintf("100.64.%d.%d", j>>8, j&255)}},
				"Checks": []map[string]any{{"ServiceID": "egress-" + id, "Status": check, "Output": "proxy works"}},
			}
		}
		f.bodies[i], _ = json.Marshal(list)
	}
	return f
}

func (f *flapping) step() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.index++
	close(f.moved)
	f.moved = make(chan struct{})
}

// ServeHTTP is a blocking query.
func (f *flapping) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	asked, _ := strconv.ParseUint(r.URL.Query().Get("index"), 10, 64)
	for {
		f.mu.Lock()
		index, moved := f.index, f.moved
		f.mu.Unlock()
		if index != asked {
			w.Header().Set("X-Consul-Index", strconv.FormatUint(index, 10))
			_, _ = w.Write(f.bodies[index%2])
			return
		}
		select {
		case <-moved:
		case <-r.Context().Done():
			return
		}
	}
}

// BenchmarkWatcher is what following a service of 10,000 instances costs while
// 100 of them change every second: the share of one processor, and how many
// answers were read.
func BenchmarkWatcher(b *testing.B) {
	consul := newFlapping(10_000)
	server := httptest.NewServer(consul)
	defer server.Close()
	client, err := api.NewClient(&api.Config{Address: server.Listener.Addr().String()})
	if err != nil {
		b.Fatal(err)
	}
	service := lease.NewService(lease.Config{})
	var updates atomic.Int32
	w := NewWatcher(WatcherConfig{Client: client, Services: []string{"egress-proxy"}, Update: func(list []*lease.Proxy) {
		service.SetProxies(list)
		updates.Add(1)
	}})
	for b.Loop() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		began, used, before := time.Now(), cpu(), updates.Load()
		go func() {
			ticker := time.NewTicker(10 * time.Millisecond)
			defer ticker.Stop()
			for ctx.Err() == nil {
				<-ticker.C
				consul.step()
			}
		}()
		_ = w.Run(ctx)
		cancel()
		took := time.Since(began)
		b.ReportMetric((cpu()-used).Seconds()/took.Seconds(), "processors")
		b.ReportMetric(float64(updates.Load()-before)/took.Seconds(), "updates/s")
	}
}

// cpu is the time that the process has used.
func cpu() time.Duration {
	var usage syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &usage)
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
