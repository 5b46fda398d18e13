package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/client-go/kubernetes"

	"github.com/egress-proxies/egress/provider"
)

// checks keeps what was found good, so that a node that is well asks seldom.
type checks struct {
	mu      sync.Mutex // guards what follows; no call is made under it
	last    provider.Verdict
	at      time.Time
	allowed time.Time // when every right was ours
}

// right is something that the provider must be allowed to do.
type right struct{ verb, resource, subresource string }

// rights are those of the role in docs/kubernetes-role.yaml that nothing works
// without.
var rights = []right{
	{"create", "pods", ""}, {"get", "pods", ""}, {"list", "pods", ""}, {"watch", "pods", ""}, {"delete", "pods", ""},
	{"get", "pods", "log"}, {"create", "secrets", ""}, {"get", "secrets", ""}, {"delete", "secrets", ""},
}

// Check asks the API server for its version, whether each right is ours, and
// what the quotas of the namespace leave. The target is the namespace. While all
// is well, the answer is minutes old and the rights an hour.
func (p *Provider) Check(ctx context.Context) []provider.Verdict {
	p.checks.mu.Lock()
	last, at, allowed := p.checks.last, p.checks.at, p.checks.allowed
	p.checks.mu.Unlock()
	if last.Ready && time.Since(at) < p.timing.check {
		return []provider.Verdict{last}
	}
	began := time.Now()
	verdict := provider.Verdict{Target: p.settings.Namespace, Facts: make(map[string]string)}
	if time.Since(allowed) >= p.timing.rights || !last.Ready {
		allowed = time.Time{}
	}
	verdict.Reason, verdict.Message = p.check(ctx, &allowed, verdict.Facts)
	verdict.Ready = verdict.Reason == provider.Reachable
	verdict.Latency = time.Since(began)
	p.checks.mu.Lock()
	p.checks.last, p.checks.at, p.checks.allowed = verdict, time.Now(), allowed
	p.checks.mu.Unlock()
	return []provider.Verdict{verdict}
}

func (p *Provider) check(ctx context.Context, allowed *time.Time, facts map[string]string) (provider.Reason, string) {
	ctx, cancel := context.WithTimeout(ctx, p.settings.CallTimeout)
	defer cancel()
	api, err := p.client.get()
	if err != nil {
		return provider.Unreachable, err.Error()
	}
	// Not Discovery, which takes no context.
	var server version.Info
	body, err := api.CoreV1().RESTClient().Get().AbsPath("/version").DoRaw(ctx)
	if err == nil {
		err = json.Unmarshal(body, &server)
	}
	if err != nil {
		return reason(ctx, err), "the API server doesn't answer: " + err.Error()
	}
	facts["kubernetes_version"] = strings.TrimPrefix(server.GitVersion, "v")
	if allowed.IsZero() {
		missing, err := p.missing(ctx, api)
		if err != nil {
			return reason(ctx, err), "the API server doesn't say what is allowed: " + err.Error()
		}
		if len(missing) > 0 {
			return provider.Forbidden, fmt.Sprintf("not allowed in namespace %s: %s: bind the role of docs/kubernetes.md",
				p.settings.Namespace, strings.Join(missing, ", "))
		}
		*allowed = time.Now()
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
