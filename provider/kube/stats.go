package kube

import (
	"context"
	"encoding/json"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/egress-proxies/egress/provider"
)

// usage turns the rates of the metrics API into counters.
type usage struct {
	mu   sync.Mutex // guards last
	last map[string]reading
}

// reading is the latest of one pod.
type reading struct {
	stats provider.Stats
	asked time.Time
}

// podMetrics is what we read of metrics.k8s.io/v1beta1 PodMetrics.
type podMetrics struct {
	Timestamp  time.Time `json:"timestamp"`
	Containers []struct {
		Usage map[string]resource.Quantity `json:"usage"`
	} `json:"containers"`
}

// Stats asks the metrics API, no more often than its source reads. A cluster
// without one gives ErrNotFound.
func (p *Provider) Stats(ctx context.Context, ref provider.Ref) (provider.Stats, error) {
	if last, ok := p.usage.get(ref.Name); ok && time.Since(last.asked) < p.timing.stats {
		return last.stats, nil
	}
	api, err := p.client.get(p.settings)
	if err != nil {
		return provider.Stats{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, p.settings.CallTimeout)
	defer cancel()
	body, err := api.CoreV1().RESTClient().Get().
		AbsPath("/apis/metrics.k8s.io/v1beta1/namespaces", p.settings.Namespace, "pods", ref.Name).DoRaw(ctx)
	if err != nil {
		return provider.Stats{}, translate(err, "read the metrics of pod %s/%s", p.settings.Namespace, ref.Name)
	}
	var metrics podMetrics
	if err := json.Unmarshal(body, &metrics); err != nil {
		return provider.Stats{}, provider.Transientf("metrics of pod %s: %w", ref.Name, err)
	}
	return p.usage.note(ref.Name, metrics, time.Now()), nil
}

func (u *usage) get(name string) (reading, bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	last, ok := u.last[name]
	return last, ok
}

// note adds the time since the last reading at the rate that was reported.
func (u *usage) note(name string, metrics podMetrics, now time.Time) provider.Stats {
	u.mu.Lock()
	defer u.mu.Unlock()
	var cores float64
	var memory uint64
	for _, one := range metrics.Containers {
		cpu, bytes := one.Usage["cpu"], one.Usage["memory"]
		cores += cpu.AsApproximateFloat64()
		memory += uint64(max(0, bytes.Value()))
	}
	stats := provider.Stats{At: metrics.Timestamp, MemoryBytes: memory}
	if last, ok := u.last[name]; ok {
		stats.CPUTime = last.stats.CPUTime
		if since := metrics.Timestamp.Sub(last.stats.At); since > 0 {
			stats.CPUTime += time.Duration(cores * float64(since))
		}
	}
	if u.last == nil {
		u.last = make(map[string]reading)
	}
	u.last[name] = reading{stats, now}
	return stats
}

// forget drops the counters of a pod that is gone.
func (u *usage) forget(name string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	delete(u.last, name)
}
