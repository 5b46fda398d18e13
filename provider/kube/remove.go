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

// Delete ends the pod with one second of grace and waits until its node
// confirms. A node that doesn't within delete_timeout is taken for lost, and
// the pod is removed from the API without it. The Secret goes with the pod;
// it is deleted here too, for a pod that never owned it.
func (p *Provider) Delete(ctx context.Context, ref provider.Ref) error {
	if err := provider.CheckName(ref.Name); err != nil {
		return err
	}
	p.hub.forget(ref.Name)
	pod, err := p.pod(ctx, ref.Name)
	switch {
	case errors.Is(err, provider.ErrNotFound):
		return p.deleteSecret(ctx, ref.Name)
	case err != nil:
		return err
	}
	if err := p.remove(ctx, pod); err != nil {
		return err
	}
	return p.deleteSecret(ctx, ref.Name)
}

func (p *Provider) remove(ctx context.Context, pod *corev1.Pod) error {
	w, err := p.hub.add(pod.Name)
	if err != nil {
		return err
	}
	defer p.hub.remove(w)
	if err := p.deletePod(ctx, pod, 1); err != nil {
		return err
	}
	gone, err := p.awaitGone(ctx, w, pod)
	if gone || err != nil {
		return err
	}
	p.env.Logger.Warn("the node doesn't confirm the end of a pod, removing it without the node",
		"pod", pod.Name, "node", pod.Spec.NodeName, "after", p.settings.DeleteTimeout)
	return p.deletePod(ctx, pod, 0)
}

// awaitGone waits until the pod is gone; false means that the time ran out.
func (p *Provider) awaitGone(ctx context.Context, w *watched, pod *corev1.Pod) (bool, error) {
	timeout := time.NewTimer(p.settings.DeleteTimeout)
	defer timeout.Stop()
	for {
		now, err := p.pod(ctx, pod.Name)
		switch {
		case errors.Is(err, provider.ErrNotFound), err == nil && now.UID != pod.UID:
			return true, nil
		case err != nil:
			return false, err
		}
		for wait := true; wait; {
			select {
			case <-ctx.Done():
				return false, provider.Transientf("delete pod %s/%s: %w", pod.Namespace, pod.Name, ctx.Err())
			case <-timeout.C:
				return false, nil
			case n := <-w.news:
				if n.gone && n.pod.UID == pod.UID {
					return true, nil
				}
				// A change of the pod is no news; what else it is, the server says.
				wait = n.pod != nil && n.pod.UID == pod.UID
				if n.broken == nil {
					continue
				}
				if err := pause(ctx, p.timing.again); err != nil {
					return false, provider.Transientf("delete pod %s/%s: %w", pod.Namespace, pod.Name, err)
				}
			}
		}
	}
}

// deletePod asks for the end of this very pod; gone is success.
func (p *Provider) deletePod(ctx context.Context, pod *corev1.Pod, grace int64) error {
	options := metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(pod.UID))}
	if grace >= 0 {
		options.GracePeriodSeconds = &grace
	}
	api, err := p.client.get()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, p.settings.CallTimeout)
	defer cancel()
	err = api.CoreV1().Pods(p.settings.Namespace).Delete(ctx, pod.Name, options)
	// A conflict is another pod under the name: this one is gone.
	if err == nil || apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	return translate(err, "delete pod %s/%s", p.settings.Namespace, pod.Name)
}

func (p *Provider) deleteSecret(ctx context.Context, name string) error {
	api, err := p.client.get()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, p.settings.CallTimeout)
	defer cancel()
	err = api.CoreV1().Secrets(p.settings.Namespace).Delete(ctx, name, metav1.DeleteOptions{})
	if err == nil || apierrors.IsNotFound(err) {
		return nil
	}
	return translate(err, "delete secret %s/%s", p.settings.Namespace, name)
}

// Stop begins the orderly end of the pod: SIGTERM, and SIGKILL after the pod's
// 30 seconds of grace. Kubernetes knows no other signal.
func (p *Provider) Stop(ctx context.Context, ref provider.Ref, _ string) error {
	if err := provider.CheckName(ref.Name); err != nil {
		return err
	}
	pod, err := p.pod(ctx, ref.Name)
	switch {
	case errors.Is(err, provider.ErrNotFound):
		return nil
	case err != nil:
		return err
	}
	if now, _, _ := state(pod); now == provider.Stopped || now == provider.Stopping {
		return nil
	}
	return p.deletePod(ctx, pod, -1)
}
