package kube

import (
	"context"
	"errors"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/egress-proxies/egress/provider"
)

// attempts bounds how often a leftover in the way is removed in one Create.
const attempts = 3

// Create makes the pod and then its Secret, which the pod waits for and owns,
// and follows the pod until it runs or says why it doesn't.
func (p *Provider) Create(ctx context.Context, spec provider.Spec) (provider.Instance, error) {
	if err := provider.CheckName(spec.Name); err != nil {
		return provider.Instance{}, err
	}
	if err := p.Validate(spec); err != nil {
		return provider.Instance{}, err
	}
	if err := ctx.Err(); err != nil {
		return provider.Instance{}, provider.Transientf("pod %s: %w", spec.Name, err)
	}
	// Before the pod is made, so that none of its changes is missed.
	w, err := p.hub.add(spec.Name)
	if err != nil {
		return provider.Instance{}, err
	}
	defer p.hub.remove(w)

	pod, sent, err := p.submit(ctx, spec)
	if err == nil {
		pod, err = p.settle(ctx, w, pod)
	}
	if err != nil {
		if sent {
			p.cleanUp(ctx, spec.Name)
		}
		return provider.Instance{}, err
	}
	return describe(pod), nil
}

// submit makes the pod and its Secret or adopts those that are there. sent is
// true when a pod may exist that wasn't there before.
func (p *Provider) submit(ctx context.Context, spec provider.Spec) (pod *corev1.Pod, sent bool, err error) {
	for range attempts {
		pod, err = p.createPod(ctx, spec)
		if err != nil && !apierrors.IsAlreadyExists(err) {
			// Except for a refusal the server may have made it and its answer got lost.
			return nil, provider.Classify(err) == provider.ErrTransient, err
		}
		sent = err == nil
		if !sent {
			if pod, err = p.pod(ctx, spec.Name); errors.Is(err, provider.ErrNotFound) {
				continue // it went in between
			} else if err != nil {
				return nil, false, err
			}
			if was, _, _ := state(pod); was == provider.Stopped || was == provider.Stopping || was == provider.Unknown {
				provider.Report(ctx, "Removing an earlier pod %s", spec.Name)
				if err := p.Delete(ctx, provider.Ref{Name: spec.Name}); err != nil {
					return nil, false, err
				}
				continue
			}
		}
		if err := p.createSecret(ctx, spec, pod); err != nil {
			return nil, sent, err
		}
		return pod, sent, nil
	}
	return nil, false, provider.Transientf("pod %s/%s comes and goes: something else deletes or makes it", p.settings.Namespace, spec.Name)
}

func (p *Provider) createPod(ctx context.Context, spec provider.Spec) (*corev1.Pod, error) {
	api, err := p.client.get()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, p.settings.CallTimeout)
	defer cancel()
	pod, err := api.CoreV1().Pods(p.settings.Namespace).Create(ctx, newPod(p.settings, spec), metav1.CreateOptions{})
	switch {
	case err == nil, apierrors.IsAlreadyExists(err):
		return pod, err
	case apierrors.IsNotFound(err):
		return nil, provider.Permanentf("create pod %s: the namespace %q doesn't exist: %w", spec.Name, p.settings.Namespace, err)
	default:
		return nil, translate(err, "create pod %s/%s", p.settings.Namespace, spec.Name)
	}
}

// createSecret makes the Secret of the pod. One of an earlier pod of the name
// is replaced: Kubernetes would collect it under this one's feet.
func (p *Provider) createSecret(ctx context.Context, spec provider.Spec, pod *corev1.Pod) error {
	secret, err := newSecret(p.settings, spec, pod)
	if err != nil {
		return err
	}
	api, err := p.client.get()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, p.settings.CallTimeout)
	defer cancel()
	secrets := api.CoreV1().Secrets(p.settings.Namespace)
	for range attempts {
		if _, err = secrets.Create(ctx, secret, metav1.CreateOptions{}); err == nil {
			return nil
		}
		if !apierrors.IsAlreadyExists(err) {
			break
		}
		present, getErr := secrets.Get(ctx, spec.Name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(getErr):
			continue
		case getErr != nil:
			return translate(getErr, "get secret %s/%s", p.settings.Namespace, spec.Name)
		case len(present.OwnerReferences) == 1 && present.OwnerReferences[0].UID == pod.UID:
			return nil
		case present.Labels[provider.LabelManaged] != "true":
			return provider.Permanentf("secret %s/%s exists and isn't ours: delete it", p.settings.Namespace, spec.Name)
		}
		if err := p.deleteSecret(ctx, spec.Name); err != nil {
			return err
		}
	}
	return translate(err, "create secret %s/%s", p.settings.Namespace, spec.Name)
}

// settle follows a pod until it has started, or until what holds it up can't
// or did not go away. Each new reason is reported.
func (p *Provider) settle(ctx context.Context, w *watched, pod *corev1.Pod) (*corev1.Pod, error) {
	timeout := time.NewTimer(p.settings.PendingTimeout)
	defer timeout.Stop()
	said := ""
	for {
		if now := describe(pod).State; now != provider.Provisioning {
			return pod, nil
		}
		reason, class := pending(pod)
		if class == provider.ErrPermanent {
			return nil, provider.Permanentf("pod %s/%s: %s", pod.Namespace, pod.Name, reason)
		}
		if reason != said {
			provider.Report(ctx, "Pod %s: %s", pod.Name, reason)
			said = reason
		}
		select {
		case <-ctx.Done():
			return nil, held(class, pod, reason, context.Cause(ctx))
		case <-timeout.C:
			if class == errWaiting {
				return pod, nil // the caller waits on
			}
			return nil, held(class, pod, reason, errPendingTimeout)
		case n := <-w.news:
			next, err := p.follow(ctx, n, pod)
			if err != nil || next == nil {
				return next, err
			}
			pod = next
		}
	}
}

var errPendingTimeout = errors.New("gave up after \"pending_timeout\"")

// follow takes one piece of news about a pod that is being started.
func (p *Provider) follow(ctx context.Context, n news, pod *corev1.Pod) (*corev1.Pod, error) {
	switch {
	case n.broken != nil:
		// Without a watch the state is asked for, no faster than it must.
		if err := pause(ctx, p.timing.again); err != nil {
			return nil, provider.Transientf("pod %s/%s: %w", pod.Namespace, pod.Name, err)
		}
		now, err := p.pod(ctx, pod.Name)
		switch {
		case errors.Is(err, provider.ErrNotFound), err == nil && now.UID != pod.UID:
			return nil, provider.Transientf("pod %s/%s was deleted while it started", pod.Namespace, pod.Name)
		case provider.Classify(err) == provider.ErrTransient:
			return pod, nil // the next failure of the watch asks again
		}
		return now, err
	case n.pod == nil, n.pod.UID != pod.UID:
		return pod, nil // a list older than the pod, or an earlier pod of the name
	case !n.gone:
		return n.pod, nil
	default:
		return nil, provider.Transientf("pod %s/%s was deleted while it started", pod.Namespace, pod.Name)
	}
}

// held is the error of a pod that did not start in time.
func held(class error, pod *corev1.Pod, reason string, cause error) error {
	if class == provider.ErrQuotaExceeded {
		return provider.Quotaf("pod %s/%s: %s: %w", pod.Namespace, pod.Name, reason, cause)
	}
	return provider.Transientf("pod %s/%s: %s: %w", pod.Namespace, pod.Name, reason, cause)
}

// cleanUp removes what a failed start made; what it can't, List finds.
func (p *Provider) cleanUp(ctx context.Context, name string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), p.timing.cleanup)
	defer cancel()
	if err := p.Delete(ctx, provider.Ref{Name: name}); err != nil {
		p.env.Logger.Warn("a failed start left a pod behind", "pod", name, "error", err)
	}
}

func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
