package kube

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/egress-proxies/egress/provider"
)

// describe is what a pod says of itself.
func describe(pod *corev1.Pod) provider.Instance {
	labels, _ := provider.LabelsFromMap(pod.Annotations)
	instance := provider.Instance{
		Ref:       provider.Ref{Name: pod.Name, Zone: pod.Spec.NodeSelector[zoneLabel]},
		ID:        string(pod.UID),
		Labels:    labels,
		CreatedAt: pod.CreationTimestamp.UTC(),
	}
	instance.State, instance.Reason, instance.Exit = state(pod)
	if instance.State == provider.Running {
		instance.Addresses = addresses(pod)
		if len(instance.Addresses) == 0 {
			instance.State, instance.Reason = provider.Provisioning, "the pod has no address yet"
		} else {
			instance.Address = instance.Addresses[0]
		}
	}
	return instance
}

func state(pod *corev1.Pod) (provider.State, string, *provider.Exit) {
	status, known := containerStatus(pod)
	if disrupted := condition(pod, corev1.DisruptionTarget); disrupted != nil && disrupted.Reason == "DeletionByTaintManager" {
		return provider.Stopped, "node lost: " + nodeName(pod) + ": " + disrupted.Message, nil
	}
	switch {
	case pod.Status.Phase == corev1.PodFailed, pod.Status.Phase == corev1.PodSucceeded, known && status.State.Terminated != nil:
		exit, reason := ended(pod, status)
		return provider.Stopped, reason, exit
	case pod.DeletionTimestamp != nil:
		return provider.Stopping, leaving(pod), nil
	case pod.Status.Phase == corev1.PodRunning && known && status.State.Running != nil:
		return provider.Running, "", nil
	case pod.Status.Phase == corev1.PodRunning, pod.Status.Phase == corev1.PodPending, pod.Status.Phase == "":
		reason, _ := pending(pod)
		return provider.Provisioning, reason, nil
	default:
		return provider.Unknown, fmt.Sprintf("the pod's phase is %q: the node %s doesn't answer", pod.Status.Phase, nodeName(pod)), nil
	}
}

// ended explains a pod that will not run again.
func ended(pod *corev1.Pod, status corev1.ContainerStatus) (*provider.Exit, string) {
	var exit *provider.Exit
	reason := ""
	if t := status.State.Terminated; t != nil {
		exit = &provider.Exit{Code: int(t.ExitCode), Signal: int(t.Signal), OOMKilled: t.Reason == "OOMKilled"}
		// Runtimes report a signal as 128 and its number.
		if exit.Signal == 0 && exit.Code > 128 && exit.Code < 160 {
			exit.Signal = exit.Code - 128
		}
		switch {
		case exit.OOMKilled:
			reason = "out of memory: the container reached its memory limit, raise the task's memory"
		case exit.Signal != 0:
			reason = fmt.Sprintf("killed by signal %d", exit.Signal)
		default:
			reason = fmt.Sprintf("exited with code %d", exit.Code)
			if text := lastWords(t.Message); text != "" {
				reason += ": " + text
			}
		}
	}
	// Why the whole pod ended says more than how its process did.
	switch {
	case pod.Status.Reason == "Evicted":
		return exit, "evicted: " + pod.Status.Message
	case pod.Status.Reason == "NodeLost":
		return exit, "node lost: " + nodeName(pod) + ": " + pod.Status.Message
	case pod.Status.Reason != "":
		return exit, pod.Status.Reason + ": " + pod.Status.Message
	}
	if disrupted := condition(pod, corev1.DisruptionTarget); disrupted != nil && disrupted.Status == corev1.ConditionTrue {
		return exit, leaving(pod)
	}
	if reason == "" {
		reason = "the pod ended: " + string(pod.Status.Phase)
	}
	return exit, reason
}

// lastWords is the line of a log's end that says why: squid marks it and prints
// figures after it.
func lastWords(text string) string {
	const most = 300
	last := ""
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if strings.Contains(last, "FATAL:") && !strings.Contains(line, "FATAL:") || line == "" {
			continue
		}
		last = line
	}
	return strings.ToValidUTF8(last[:min(len(last), most)], "")
}

// leaving says who takes a pod away.
func leaving(pod *corev1.Pod) string {
	disrupted := condition(pod, corev1.DisruptionTarget)
	if disrupted == nil || disrupted.Status != corev1.ConditionTrue {
		return "the pod is being deleted"
	}
	word := map[string]string{
		"PreemptionByScheduler": "preempted", "EvictionByEvictionAPI": "evicted", "TerminationByKubelet": "terminated by its node",
		"DeletionByPodGC": "node lost", "DeletionByTaintManager": "node lost",
	}[disrupted.Reason]
	if word == "" {
		word = disrupted.Reason
	}
	return word + ": " + disrupted.Message
}

// addresses are the pod's, or with the host network its node's: IPv4 first.
func addresses(pod *corev1.Pod) []string {
	var four, six []string
	for _, ip := range pod.Status.PodIPs {
		address, err := netip.ParseAddr(ip.IP)
		switch {
		case err != nil || address.IsLinkLocalUnicast():
		case address.Is4():
			four = append(four, address.String())
		default:
			six = append(six, address.String())
		}
	}
	if len(four)+len(six) == 0 && pod.Status.PodIP != "" {
		return []string{pod.Status.PodIP}
	}
	return slices.Concat(four, six)
}

func containerStatus(pod *corev1.Pod) (corev1.ContainerStatus, bool) {
	for _, status := range pod.Status.ContainerStatuses {
		if status.Name == container {
			return status, true
		}
	}
	return corev1.ContainerStatus{}, false
}

func condition(pod *corev1.Pod, kind corev1.PodConditionType) *corev1.PodCondition {
	for i := range pod.Status.Conditions {
		if pod.Status.Conditions[i].Type == kind {
			return &pod.Status.Conditions[i]
		}
	}
	return nil
}

func nodeName(pod *corev1.Pod) string {
	if pod.Spec.NodeName == "" {
		return "(none)"
	}
	return pod.Spec.NodeName
}
