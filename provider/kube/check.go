package kube

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/egress-proxies/egress/provider"
)

// checks keeps the last good verdict, which costs a dozen calls.
type checks struct {
	mu   sync.Mutex // guards what follows
	last provider.Verdict
	at   time.Time
}

// right is something that the provider must be allowed to do.
type right struct{ verb, resource, subresource string }

// rights are those of the role in docs/kubernetes.md.
var rights = []right{
	{"create", "pods", ""}, {"get", "pods", ""}, {"list", "pods", ""}, {"watch", "pods", ""}, {"delete", "pods", ""},
	{"get", "pods", "log"}, {"create", "secrets", ""}, {"get", "secrets", ""}, {"delete", "secrets", ""},
}

// Check asks the API server for its version, whether each right is ours, and
// what the quotas of the namespace leave. The target is the namespace.
func (p *Provider) Check(ctx context.Context) []provider.Verdict {
	p.checks.mu.Lock()
	last, at := p.checks.last, p.checks.at
	p.checks.mu.Unlock()
	if last.Ready && time.Since(at) < p.timing.check {
		return []provider.Verdict{last}
	}
	began := time.Now()
	verdict := provider.Verdict{Target: p.settings.Namespace, Facts: make(map[string]string)}
	verdict.Reason, verdict.Message = p.check(ctx, verdict.Facts)
	verdict.Ready = verdict.Reason == provider.Reachable
	verdict.Latency = time.Since(began)
	p.checks.mu.Lock()
	p.checks.last, p.checks.at = verdict, time.Now()
	p.checks.mu.Unlock()
	return []provider.Verdict{verdict}
}

func (p *Provider) check(ctx context.Context, facts map[string]string) (provider.Reason, string) {
	api, err := p.client.get(p.settings)
	if err != nil {
		return provider.Unreachable, err.Error()
	}
	ctx, cancel := context.WithTimeout(ctx, p.settings.CallTimeout)
	defer cancel()
	// Not Discovery, which takes no context.
	body, err := api.CoreV1().RESTClient().Get().AbsPath("/version").DoRaw(ctx)
	if err != nil {
		return reason(ctx, err), "the API server doesn't answer: " + err.Error()
	}
	if _, rest, ok := strings.Cut(string(body), `"gitVersion": "`); ok {
		facts["kubernetes_version"], _, _ = strings.Cut(rest, `"`)
	}
	missing, err := p.missing(ctx, api)
	if err != nil {
		return reason(ctx, err), "the API server doesn't say what is allowed: " + err.Error()
	}
	if len(missing) > 0 {
		return provider.Forbidden, fmt.Sprintf("not allowed in namespace %s: %s: bind the role of docs/kubernetes.md",
			p.settings.Namespace, strings.Join(missing, ", "))
	}
	return p.quota(ctx, api, facts)
}

// missing are the rights that we don't have.
func (p *Provider) missing(ctx context.Context, api *kubernetes.Clientset) ([]string, error) {
	var missing []string
	for _, right := range rights {
		review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{
			ResourceAttributes: &authorizationv1.ResourceAttributes{
				Namespace: p.settings.Namespace, Verb: right.verb, Resource: right.resource, Subresource: right.subresource,
			},
		}}
		answer, err := api.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx, review, metav1.CreateOptions{})
		if err != nil {
			return nil, err
		}
		if !answer.Status.Allowed {
			missing = append(missing, strings.TrimSuffix(right.verb+" "+right.resource+"/"+right.subresource, "/"))
		}
	}
	return missing, nil
}

// quota tells what is left of pods, processors and memory. Reading quotas is
// optional.
func (p *Provider) quota(ctx context.Context, api *kubernetes.Clientset, facts map[string]string) (provider.Reason, string) {
	quotas, err := api.CoreV1().ResourceQuotas(p.settings.Namespace).List(ctx, metav1.ListOptions{})
	if apierrors.IsForbidden(err) {
		return provider.Reachable, "the namespace is usable; its quotas can't be read"
	}
	if err != nil {
		return reason(ctx, err), "the quotas of the namespace can't be read: " + err.Error()
	}
	units := map[corev1.ResourceName]struct {
		key  string
		unit int64
	}{
		corev1.ResourcePods: {"pods_free", 1}, corev1.ResourceRequestsCPU: {"cpus_free", 1}, corev1.ResourceRequestsMemory: {"memory_free_mib", 1 << 20},
	}
	left := make(map[string]int64)
	exhausted := ""
	for _, quota := range quotas.Items {
		for resource, hard := range quota.Status.Hard {
			as, counts := units[resource]
			if !counts {
				continue
			}
			used := quota.Status.Used[resource]
			free := max(0, hard.Value()-used.Value()) / as.unit
			if before, known := left[as.key]; !known || free < before {
				left[as.key] = free
			}
			if free == 0 {
				exhausted = fmt.Sprintf("quota %s: no %s left of %s", quota.Name, resource, hard.String())
			}
		}
	}
	for key, value := range left {
		facts[key] = strconv.FormatInt(value, 10)
	}
	if exhausted != "" {
		return provider.QuotaExhausted, exhausted
	}
	return provider.Reachable, "the namespace is usable"
}

func reason(ctx context.Context, err error) provider.Reason {
	switch {
	case ctx.Err() != nil, apierrors.IsTimeout(err):
		return provider.Timeout
	case apierrors.IsUnauthorized(err):
		return provider.Unauthorized
	case apierrors.IsForbidden(err):
		return provider.Forbidden
	case apierrors.ReasonForError(err) != metav1.StatusReasonUnknown:
		return provider.APIError
	default:
		return provider.Unreachable
	}
}
