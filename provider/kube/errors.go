package kube

import (
	"fmt"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/egress-proxies/egress/provider"
)

// translate gives an error of the API its class. It is called once, where the
// API was called.
func translate(err error, format string, args ...any) error {
	doing := fmt.Sprintf(format, args...)
	switch {
	case apierrors.IsNotFound(err):
		return provider.NotFoundf("%s: %w", doing, err)
	case apierrors.IsForbidden(err):
		return forbidden(err, doing)
	case apierrors.IsUnauthorized(err):
		return provider.Permanentf("%s: the API server doesn't accept the credentials of the kubeconfig: %w", doing, err)
	case apierrors.IsInvalid(err), apierrors.IsBadRequest(err), apierrors.IsMethodNotSupported(err),
		apierrors.IsRequestEntityTooLargeError(err), apierrors.IsNotAcceptable(err), apierrors.IsUnsupportedMediaType(err):
		return provider.Permanentf("%s: %w", doing, err)
	default:
		// Conflicts, throttling, time-outs, errors of the server, and whatever
		// happens between here and there.
		return provider.Transientf("%s: %w", doing, err)
	}
}

// forbidden tells the three things apart that Kubernetes answers with 403.
func forbidden(err error, doing string) error {
	text := err.Error()
	switch {
	case strings.Contains(text, "exceeded quota"):
		return provider.Quotaf("%s: %w", doing, err)
	case strings.Contains(text, "violates PodSecurity"):
		return provider.Permanentf("%s: the namespace's pod security level doesn't allow it: %w", doing, err)
	case strings.Contains(text, "because it is being terminated"):
		return provider.Transientf("%s: the namespace is being deleted: %w", doing, err)
	case strings.Contains(text, "error looking up service account"):
		// A new namespace has its default account after a moment.
		return provider.Transientf("%s: %w", doing, err)
	default:
		return provider.Permanentf("%s: add the right to the role in docs/kubernetes.md: %w", doing, err)
	}
}
