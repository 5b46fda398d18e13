package kube

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/egress-proxies/egress/provider"
)

// usage keeps what the metrics API said last of all pods: one call serves every
// task of the node, however often Nomad asks.
type usage struct {
	asking sync.Mutex // held by the one who asks; the others wait for the answer

	mu    sync.Mutex // guards what follows; no call is made under it
	asked time.Time
	err   error
	pods  map[string]provider.Stats
}

// podMetrics is what we read of a list of metrics.k8s.io/v1beta1 PodMetrics.
type podMetrics struct {
	Items []struct {
		metav1.ObjectMeta `json:"metadata"`
		Timestamp         time.Time `json:"timestamp"`
		Containers        []struct {
			Usage map[string]resource.Quantity `json:"usage"`
		} `json:"containers"`
	} `json:"items"`
}

// Stats gives what the metrics API says, half a minute old at most. A cluster
// without one, and a pod that it has not measured yet, give ErrNotFound.
func (p *Provider) Stats(ctx context.Context, ref provider.Ref) (provider.Stats, error) {
	if err := provider.CheckName(ref.Name); err != nil {
		return provider.Stats{}, err
	}
	if !p.usage.fresh(p.timing.stats) {
		p.refresh(ctx)
	}
	return p.usage.of(ref.Name)
}

// refresh asks once for all who wait. What went wrong is an answer too: it is
// not asked again before its time.
func (p *Provider) refresh(ctx context.Context) {
	p.usage.asking.Lock()
	defer p.usage.asking.Unlock()
	if p.usage.fresh(p.timing.stats) {
		return
	}
	metrics, err := p.metrics(ctx)
	if err != nil && ctx.Err() != nil {
		return // the next one asks
	}
	p.usage.note(metrics, err, time.Now())
}

func (p *Provider) metrics(ctx context.Context) (podMetrics, error) {
	api, err := p.client.get()
	if err != nil {
		return podMetrics{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, p.settings.CallTimeout)
	defer cancel()
	body, err := api.CoreV1().RESTClient().Get().
		AbsPath("/apis/metrics.k8s.io/v1beta1/namespaces", p.settings.Namespace, "pods").
		Param("labelSelector", selector(p.env.Cluster)).DoRaw(ctx)
	if err != nil {
		return podMetrics{}, translate(err, "read the metrics of the pods of namespace %s", p.settings.Namespace)
	}
	var metrics podMetrics
	if err := json.Unmarshal(body, &metrics); err != nil {
		return podMetrics{}, provider.Transientf("metrics of the pods of namespace %s: %w", p.settings.Namespace, err)
	}
	return metrics, nil
}

func (u *usage) fresh(age time.Duration) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return !u.asked.IsZero() && time.Since(u.asked) < age
}

var errNotMeasured = errors.New("the metrics API has not measured it yet")

func (u *usage) of(name string) (provider.Stats, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if stats, ok := u.pods[name]; ok {
		return stats, nil
	}
	if u.err != nil {
		return provider.Stats{}, u.err
	}
	return provider.Stats{}, provider.NotFoundf("pod %s: %w", name, errNotMeasured)
}

// note turns the rates of the API into counters: each reading adds the time
// since the one before at the rate that was reported. Pods that it doesn't name
// any more are forgotten.
func (u *usage) note(metrics podMetrics, err error, now time.Time) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.asked, u.err = now, err
	pods := make(map[string]provider.Stats, len(metrics.Items))
	for _, item := range metrics.Items {
		var cores float64
		stats := provider.Stats{At: item.Timestamp}
		for _, one := range item.Containers {
			cpu, bytes := one.Usage["cpu"], one.Usage["memory"]
			cores += cpu.AsApproximateFloat64()
			stats.MemoryBytes += uint64(max(0, bytes.Value()))
		}
		if last, ok := u.pods[item.Name]; ok {
			stats.CPUTime = last.CPUTime
			if since := item.Timestamp.Sub(last.At); since > 0 {
				stats.CPUTime += time.Duration(cores * float64(since))
			}
		}
		pods[item.Name] = stats
	}
	if err == nil {
		u.pods = pods
	}
}
