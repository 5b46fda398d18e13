package kube

import (
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/egress-proxies/egress/provider"
)

// errWaiting is a pod that is on its way as it should.
var errWaiting = errors.New("on its way")

// pending explains a pod that does not run yet. The class is how the reason
// ends if it lasts: ErrPermanent never gets better, ErrQuotaExceeded when room
// is made, ErrTransient by itself, and errWaiting is no trouble at all.
func pending(pod *corev1.Pod) (class error, reason string) {
	if scheduled := condition(pod, corev1.PodScheduled); scheduled != nil && scheduled.Status == corev1.ConditionFalse {
		return provider.ErrQuotaExceeded, "unschedulable: " + scheduled.Message
	}
	if pod.Spec.NodeName == "" {
		return errWaiting, "waiting for a node"
	}
	status, known := containerStatus(pod)
	if !known || status.State.Waiting == nil {
		return errWaiting, "waiting for node " + pod.Spec.NodeName
	}
	waiting := status.State.Waiting
	image := pod.Spec.Containers[0].Image
	switch waiting.Reason {
	case "InvalidImageName", "ErrImageNeverPull":
		return provider.ErrPermanent, fmt.Sprintf("image %s: %s: %s", image, waiting.Reason, waiting.Message)
	case "ErrImagePull", "ImagePullBackOff":
		if missing(waiting.Message) {
			return provider.ErrPermanent, fmt.Sprintf("image %s can't be pulled: %s", image, waiting.Message)
		}
		return provider.ErrTransient, fmt.Sprintf("image %s can't be pulled: %s", image, waiting.Message)
	case "RegistryUnavailable", "CreateContainerConfigError", "CreateContainerError", "RunContainerError", "CrashLoopBackOff":
		return provider.ErrTransient, waiting.Reason + ": " + waiting.Message
	default: // ContainerCreating, PodInitializing
		return errWaiting, fmt.Sprintf("node %s prepares the container", pod.Spec.NodeName)
	}
}

// missing is true for the words of registries that say no rather than not now.
func missing(message string) bool {
	message = strings.ToLower(message)
	for _, words := range []string{"not found", "manifest unknown", "repository does not exist", "unauthorized", "authorization failed", "access denied", "denied:"} {
		if strings.Contains(message, words) {
			return true
		}
	}
	return false
}
