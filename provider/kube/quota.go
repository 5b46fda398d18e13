package kube

import (
	"context"
	"fmt"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/egress-proxies/egress/provider"
)

// counted are the resources of a quota that every pod takes of, and the fact
// which says how many are left. A quota may name one in several ways.
var counted = map[corev1.ResourceName]string{
	corev1.ResourcePods: "instances_free", "count/pods": "instances_free",
	corev1.ResourceCPU: "cpus_free", corev1.ResourceRequestsCPU: "cpus_free",
	corev1.ResourceMemory: "memory_available_bytes", corev1.ResourceRequestsMemory: "memory_available_bytes",
}

// quota tells what the quotas of the namespace leave. To read them is optional.
func (p *Provider) quota(ctx context.Context, api *kubernetes.Clientset, facts map[string]string) (provider.Reason, string) {
	quotas, err := api.CoreV1().ResourceQuotas(p.settings.Namespace).List(ctx, metav1.ListOptions{})
	switch {
	case apierrors.IsForbidden(err):
		return provider.Reachable, "the namespace is usable; its quotas can't be read"
	case err != nil:
		return reason(ctx, err), "the quotas of the namespace can't be read: " + err.Error()
	}
	left, exhausted := room(quotas.Items)
	for key, value := range left {
		facts[key] = strconv.FormatInt(value, 10)
	}
	if exhausted != "" {
		return provider.QuotaExhausted, exhausted
	}
	return provider.Reachable, "the namespace is usable"
}

// room is what is left, in whole units, and what is used up. Quotas for certain
// pods alone are left out: whether they count for ours is the server's to say.
func room(quotas []corev1.ResourceQuota) (left map[string]int64, exhausted string) {
	left = make(map[string]int64)
	for _, quota := range quotas {
		if len(quota.Spec.Scopes) > 0 || quota.Spec.ScopeSelector != nil {
			continue
		}
		for name, hard := range quota.Status.Hard {
			key, counts := counted[name]
			if !counts {
				continue
			}
			free := hard.DeepCopy()
			free.Sub(quota.Status.Used[name])
			if free.Sign() <= 0 {
				exhausted = fmt.Sprintf("quota %s: no %s left of %s", quota.Name, name, hard.String())
				free = resource.Quantity{}
			}
			// Value would round half a processor up.
			whole := free.Value()
			if whole < 1<<40 {
				whole = free.MilliValue() / 1000
			}
			if before, known := left[key]; !known || whole < before {
				left[key] = whole
			}
		}
	}
	return left, exhausted
}
