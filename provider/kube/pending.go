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
func pending(pod *corev1.Pod) (reason string, class error) {
	if scheduled := condition(pod, corev1.PodScheduled); scheduled != nil && scheduled.Status == corev1.ConditionFalse {
		return "unschedulable: " + scheduled.Message, provider.ErrQuotaExceeded
	}
	if pod.Spec.NodeName == "" {
		return "waiting for a node", errWaiting
	}
	status, known := containerStatus(pod)
	if !known || status.State.Waiting == nil {
		return "waiting for node " + pod.Spec.NodeName, errWaiting
	}
	waiting := status.State.Waiting
	image := pod.Spec.Containers[0].Image
	switch waiting.Reason {
	case "InvalidImageName", "ErrImageNeverPull":
		return fmt.Sprintf("image %s: %s: %s", image, waiting.Reason, waiting.Message), provider.ErrPermanent
	case "ErrImagePull", "ImagePullBackOff":
		if missing(waiting.Message) {
			return fmt.Sprintf("image %s can't be pulled: %s", image, waiting.Message), provider.ErrPermanent
		}
		return fmt.Sprintf("image %s can't be pulled: %s", image, waiting.Message), provider.ErrTransient
	case "RegistryUnavailable", "CreateContainerConfigError", "CreateContainerError", "RunContainerError", "CrashLoopBackOff":
		return waiting.Reason + ": " + waiting.Message, provider.ErrTransient
	default: // ContainerCreating, PodInitializing
		return fmt.Sprintf("node %s prepares the container", pod.Spec.NodeName), errWaiting
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
