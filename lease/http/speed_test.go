package http_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/egress-proxies/egress/lease"
	"github.com/egress-proxies/egress/lease/api"
	leasehttp "github.com/egress-proxies/egress/lease/http"
)

// serveFleet is a service with n proxies behind HTTP.
func serveFleet(b *testing.B, n int) string {
	b.Helper()
	s := lease.NewService(lease.Config{})
	list := make([]*lease.Proxy, n)
	for i := range list {
		list[i] = &lease.Proxy{ID: fmt.Sprintf("eg-%06d", i), Address: "10.0.0.1", Port: 3128, MaxLeases: 1, Healthy: true,
			ExitIP: netip.AddrFrom4([4]byte{100, byte(i >> 16), byte(i >> 8), byte(i)}), Attributes: map[string]string{"country": "DE"}}
	}
	s.SetProxies(list)
	resign, _ := s.Lead(nil, nil)
	server := httptest.NewServer(leasehttp.New(leasehttp.Config{Service: s}))
	b.Cleanup(func() {
		server.Close()
		resign()
	})
	return server.URL
}

// load runs f from 8 clients until b is done, and reports rate and p99.
func load(b *testing.B, f func(c *http.Client)) {
	b.Helper()
	transport := &http.Transport{MaxIdleConnsPerHost: 64}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport}
	var mu sync.Mutex
	var took []time.Duration
	b.SetParallelism(4)
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		var mine []time.Duration
		for pb.Next() {
			began := time.Now()
			f(client)
			mine = append(mine, time.Since(began))
		}
		mu.Lock()
		took = append(took, mine...)
		mu.Unlock()
	})
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-µs")
}

func send(b *testing.B, c *http.Client, method, url, body string) []byte {
	r, _ := http.NewRequestWithContext(context.Background(), method, url, bytes.NewReader([]byte(body)))
	response, err := c.Do(r)
	if err != nil {
		b.Error(err)
		return nil
	}
	defer response.Body.Close()
	data, _ := io.ReadAll(response.Body)
	if response.StatusCode >= 300 {
		b.Errorf("%s %s: %s %s", method, url, response.Status, data)
	}
	return data
}

// BenchmarkHTTP compares acquire and release with a handler that answers a
// constant of the same size to the same two requests: the rate should be at
// least 0.6 of it.
func BenchmarkHTTP(b *testing.B) {
	const body = `{"selector":"country=DE","target":"https://site.example/","ttl":"1m"}`
	var answer []byte
	for _, n := range []int{100, 100_000} {
		b.Run(fmt.Sprintf("acquire+release/%d", n), func(b *testing.B) {
			url := serveFleet(b, n)
			load(b, func(c *http.Client) {
				data := send(b, c, "POST", url+api.PathLeases, body)
				var out api.Leases
				if err := json.Unmarshal(data, &out); err != nil {
					b.Error(err)
					return
				}
				send(b, c, "DELETE", url+api.PathLeases+"/"+out.Leases[0].ID, "")
				answer = data
			})
		})
	}
	b.Run("constant", func(b *testing.B) {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			if r.Method == "DELETE" {
				w.WriteHeader(http.StatusNoContent)
				return
			}
			w.Header().Set("Content-Type", "application/json")
			_, _ = w.Write(answer)
		}))
		defer server.Close()
		load(b, func(c *http.Client) {
			data := send(b, c, "POST", server.URL+api.PathLeases, body)
			var out api.Leases
			if err := json.Unmarshal(data, &out); err != nil {
				b.Error(err)
				return
			}
			send(b, c, "DELETE", server.URL+api.PathLeases+"/"+out.Leases[0].ID, "")
		})
	})
}
