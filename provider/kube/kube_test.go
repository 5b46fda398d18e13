package kube

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/egress-proxies/egress/provider"
)

func TestParseRefuses(t *testing.T) {
	for key, value := range map[string]any{
		"namespce": "x", "kubeconfig": "config", "namespace": "Not Valid", "image_pull_policy": "Sometimes", "run_as_user": -1,
		"max_file_descriptors": 3, "call_timeout": "1ms", "allow_clients": []any{"everybody"},
		"tolerations": []any{"a=b:Never"}, "labels": map[string]any{"egress-cluster": "x"},
	} {
		if _, err := parse(map[string]any{key: value}); err == nil || !strings.Contains(err.Error(), key) {
			t.Errorf("%s = %v: %v, want an error that names the key", key, value, err)
		}
	}
	if _, err := parse(map[string]any{"allow_clients": []string{}}); err == nil || !strings.Contains(err.Error(), "allow_clients") {
		t.Errorf("no clients: %v, want an error that names the key", err)
	}
	if _, err := parse(map[string]any{"tolerations": []any{"a=b:NoSchedule", "c"}}); err != nil {
		t.Error(err)
	}
}

func TestStates(t *testing.T) {
	running := corev1.ContainerStatus{Name: container, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}
	oom := corev1.ContainerStatus{Name: container, State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 137, Reason: "OOMKilled"}}}
	fatal := corev1.ContainerStatus{Name: container, State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
		ExitCode: 1, Reason: "Error", Message: "Starting Squid\nFATAL: Bungled squid.conf\nCPU Usage: 0.1 seconds\n",
	}}}
	pull := corev1.ContainerStatus{Name: container, State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ErrImagePull", Message: "manifest unknown"}}}
	for name, tc := range map[string]struct {
		status corev1.PodStatus
		state  provider.State
		reason string
	}{
		"no address":     {corev1.PodStatus{Phase: corev1.PodRunning, ContainerStatuses: []corev1.ContainerStatus{running}}, provider.Provisioning, "no address"},
		"unknown":        {corev1.PodStatus{Phase: corev1.PodUnknown}, provider.Unknown, "doesn't answer"},
		"evicted":        {corev1.PodStatus{Phase: corev1.PodFailed, Reason: "Evicted", Message: "disk"}, provider.Stopped, "evicted: disk"},
		"does not start": {corev1.PodStatus{Phase: corev1.PodFailed, ContainerStatuses: []corev1.ContainerStatus{fatal}}, provider.Stopped, "exited with code 1: FATAL: Bungled squid.conf"},
		"memory":         {corev1.PodStatus{Phase: corev1.PodFailed, ContainerStatuses: []corev1.ContainerStatus{oom}}, provider.Stopped, "out of memory"},
		"image":          {corev1.PodStatus{Phase: corev1.PodPending, ContainerStatuses: []corev1.ContainerStatus{pull}}, provider.Provisioning, "manifest unknown"},
		"unschedulable":  {corev1.PodStatus{Phase: corev1.PodPending, Conditions: []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Message: "0/3 nodes"}}}, provider.Provisioning, "unschedulable: 0/3 nodes"},
		"node lost":      {corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: "DeletionByTaintManager"}}}, provider.Stopped, "node lost"},
		"running": {corev1.PodStatus{
			Phase: corev1.PodRunning, ContainerStatuses: []corev1.ContainerStatus{running}, PodIPs: []corev1.PodIP{{IP: "fd00::1"}, {IP: "10.0.0.1"}},
		}, provider.Running, ""},
	} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "eg-a"}, Status: tc.status, Spec: corev1.PodSpec{NodeName: "n", Containers: []corev1.Container{{Image: "i"}}}}
		if name == "unschedulable" {
			pod.Spec.NodeName = ""
		}
		got := describe(pod)
		if got.State != tc.state || !strings.Contains(got.Reason, tc.reason) {
			t.Errorf("%s: %s %q, want %s %q", name, got.State, got.Reason, tc.state, tc.reason)
		}
		if name == "running" && got.Address != "10.0.0.1" {
			t.Errorf("address is %s, want IPv4 first", got.Address)
		}
	}
}
