package kube

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/egress-proxies/egress/provider"
)

const (
	container = "proxy"
	zoneLabel = "topology.kubernetes.io/zone"
)

// newPod is the pod of a spec. It fits namespaces of the pod security level
// "restricted", except with host_network.
func newPod(s settings, spec provider.Spec) *corev1.Pod {
	annotations := maps.Clone(s.Annotations)
	if annotations == nil {
		annotations = make(map[string]string)
	}
	maps.Copy(annotations, spec.Labels.Map())
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: spec.Name, Namespace: s.Namespace, Labels: podLabels(s, spec.Labels), Annotations: annotations,
		},
		Spec: corev1.PodSpec{
			// Nomad restarts and replaces; two who do would fight.
			RestartPolicy:                 corev1.RestartPolicyNever,
			TerminationGracePeriodSeconds: new(int64(30)),
			AutomountServiceAccountToken:  new(s.ServiceAccount != ""),
			EnableServiceLinks:            new(false),
			ServiceAccountName:            s.ServiceAccount,
			HostNetwork:                   s.HostNetwork,
			NodeSelector:                  nodeSelector(s, spec),
			Tolerations:                   s.tolerations,
			SecurityContext: &corev1.PodSecurityContext{
				RunAsNonRoot: new(true), RunAsUser: &s.RunAsUser, RunAsGroup: &s.RunAsUser, FSGroup: &s.RunAsUser,
				SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
			},
			Containers: []corev1.Container{newContainer(s, spec)},
			Volumes: []corev1.Volume{
				{Name: "files", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{
					SecretName: spec.Name, DefaultMode: new(int32(0o440)),
				}}},
				{Name: "tmp", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{
					SizeLimit: resource.NewQuantity(64<<20, resource.BinarySI),
				}}},
			},
		},
	}
	if spec.Port < 1024 {
		// A safe sysctl of the pod's own network; older runtimes don't set it.
		pod.Spec.SecurityContext.Sysctls = []corev1.Sysctl{{Name: "net.ipv4.ip_unprivileged_port_start", Value: "0"}}
	}
	for _, name := range s.ImagePullSecrets {
		pod.Spec.ImagePullSecrets = append(pod.Spec.ImagePullSecrets, corev1.LocalObjectReference{Name: name})
	}
	return pod
}

func newContainer(s settings, spec provider.Spec) corev1.Container {
	c := corev1.Container{
		Name:            container,
		Image:           spec.Image,
		ImagePullPolicy: corev1.PullPolicy(s.ImagePullPolicy),
		// So that a proxy that doesn't start says why in the task's events.
		TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
		Args:                     spec.Args,
		Ports:                    []corev1.ContainerPort{{Name: "proxy", ContainerPort: int32(spec.Port), Protocol: corev1.ProtocolTCP}},
		Resources:                requirements(spec.Resources),
		VolumeMounts: []corev1.VolumeMount{
			{Name: "files", MountPath: filesDir, ReadOnly: true},
			{Name: "tmp", MountPath: "/tmp"},
		},
		SecurityContext: &corev1.SecurityContext{
			AllowPrivilegeEscalation: new(false), ReadOnlyRootFilesystem: new(true), RunAsNonRoot: new(true),
			Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
		},
	}
	if c.Image == "" {
		c.Image = s.DefaultImage
	}
	switch {
	case spec.Command != "":
		c.Command = []string{spec.Command}
	case s.squid:
		c.Command = squidCommand(filesDir + "/" + squidFile)
	}
	for _, pair := range spec.Env {
		name, value, _ := strings.Cut(pair, "=")
		// A $(NAME) would be replaced by Kubernetes.
		c.Env = append(c.Env, corev1.EnvVar{Name: name, Value: strings.ReplaceAll(value, "$(", "$$(")})
	}
	return c
}

// requirements are the task's resources. Memory is a request and a limit; the
// CPU is a request alone, since a limit throttles a proxy that has work. Nomad's
// MHz become a share of a processor of 2 GHz.
func requirements(r provider.Resources) corev1.ResourceRequirements {
	requests, limits := corev1.ResourceList{}, corev1.ResourceList{}
	switch {
	case r.Cores > 0:
		requests[corev1.ResourceCPU] = *resource.NewQuantity(int64(r.Cores), resource.DecimalSI)
	case r.CPUMHz > 0:
		requests[corev1.ResourceCPU] = *resource.NewMilliQuantity(max(1, r.CPUMHz/2), resource.DecimalSI)
	}
	if r.MemoryMiB > 0 {
		memory := *resource.NewQuantity(r.MemoryMiB<<20, resource.BinarySI)
		requests[corev1.ResourceMemory], limits[corev1.ResourceMemory] = memory, memory
	}
	return corev1.ResourceRequirements{Requests: requests, Limits: limits}
}

func nodeSelector(s settings, spec provider.Spec) map[string]string {
	if spec.Zone == "" {
		return s.NodeSelector
	}
	selector := maps.Clone(s.NodeSelector)
	if selector == nil {
		selector = make(map[string]string)
	}
	selector[zoneLabel] = spec.Zone
	return selector
}

// podLabels are for selectors: the configured ones and what of ours fits.
func podLabels(s settings, l provider.Labels) map[string]string {
	labels := maps.Clone(s.Labels)
	if labels == nil {
		labels = make(map[string]string)
	}
	for _, key := range []string{provider.LabelManaged, provider.LabelCluster, provider.LabelJob, provider.LabelAlloc, provider.LabelTask} {
		labels[key] = labelValue(l.Map()[key])
	}
	return labels
}

func selector(cluster string) string {
	return fmt.Sprintf("%s=true,%s=%s", provider.LabelManaged, provider.LabelCluster, labelValue(cluster))
}

// labelValue is text where it can be the value of a label, and a digest of it
// otherwise.
func labelValue(text string) string {
	if len(validation.IsValidLabelValue(text)) == 0 {
		return text
	}
	sum := sha256.Sum256([]byte(text))
	return "sha256-" + hex.EncodeToString(sum[:16])
}
