package fingerprint

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/egress-proxies/egress/provider"
	"github.com/egress-proxies/egress/provider/fake"
)

func TestMetricsOfTargets(t *testing.T) {
	f := fake.New(fake.Options{Zones: []string{"a", "b"}})
	f.SetFacts("a", map[string]string{
		"pool_capacity_gib": "100", "pool_available_bytes": "5000000000", "memory_available_mib": "512",
	})
	f.Fail("check/b", -1, fake.Because(provider.Unreachable, "no route"))
	m := New([]Source{{Name: "hv", Type: "fake", Provider: f}}, Options{})
	m.Once(t.Context())
	text := scrape(t, m)
	for _, want := range []string{
		`egress_target_memory_bytes{provider="hv",state="available",target="a"} 5.36870912e+08`,
		`egress_target_pool_bytes{provider="hv",state="available",target="a"} 5e+09`,
		`egress_target_pool_bytes{provider="hv",state="capacity",target="a"} 1.073741824e+11`,
		`egress_target_up{provider="hv",target="a"} 1`,
		`egress_target_up{provider="hv",target="b"} 0`,
	} {
		if !strings.Contains(text, want+"\n") {
			t.Errorf("no %s", want)
		}
	}
	for name, want := range map[string]int{
		"egress_target_up": 2, "egress_target_check_duration_seconds": 2, "egress_target_check_timestamp_seconds": 2,
		"egress_target_pool_bytes": 2, "egress_target_memory_bytes": 1,
	} {
		if n := strings.Count(text, "\n"+name+"{"); n != want {
			t.Errorf("%d of %s, want %d", n, name, want)
		}
	}
	if t.Failed() {
		t.Log(text)
	}
}

// scrape gives the metrics as Prometheus reads them.
func scrape(t *testing.T, m *Monitor) string {
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(m)
	answer := httptest.NewRecorder()
	promhttp.HandlerFor(registry, promhttp.HandlerOpts{ErrorHandling: promhttp.HTTPErrorOnError}).
		ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	if answer.Code != http.StatusOK {
		t.Fatal(answer.Body)
	}
	return answer.Body.String()
}

func TestATakenMetricsPortIsToldOnceAndTriedAgain(t *testing.T) {
	first, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := first.Addr().String()
	var log safeBuffer
	m := New([]Source{{Name: "hv", Type: "fake", Provider: fake.New(fake.Options{})}}, Options{})
	m.Once(t.Context())
	registry := prometheus.NewRegistry()
	registry.MustRegister(m)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		serveMetrics(ctx, address, registry, hclog.New(&hclog.LoggerOptions{Output: &log}), 5*time.Millisecond)
	})
	defer wg.Wait()
	defer cancel()
	waiting, giveUp := context.WithTimeout(ctx, time.Minute)
	defer giveUp()
	for !strings.Contains(log.String(), "not served yet") && waiting.Err() == nil {
		time.Sleep(time.Millisecond)
	}
	// The other agent ends after many a retry.
	time.AfterFunc(100*time.Millisecond, func() { _ = first.Close() })
	body := ""
	for body == "" && waiting.Err() == nil {
		body = fetch(waiting, "http://"+address+"/metrics")
	}
	if !strings.Contains(body, `egress_target_up{provider="hv",target="fake"} 1`) {
		t.Errorf("metrics:\n%s", body)
	}
	if n := strings.Count(log.String(), "not served yet"); n != 1 {
		t.Errorf("the taken port is told %d times, want once:\n%s", n, log.String())
	}
}

// fetch is empty when there is no answer within a moment.
func fetch(ctx context.Context, url string) string {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return ""
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return ""
	}
	defer func() { _ = response.Body.Close() }()
	text, _ := io.ReadAll(response.Body)
	return string(text)
}

// safeBuffer is written by one goroutine and read by another.
type safeBuffer struct {
	mu   sync.Mutex
	text strings.Builder
}

func (b *safeBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *safeBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}
