package kube

import (
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/egress-proxies/egress/provider"
)

// options are the keys of the provider block.
type options struct {
	Kubeconfig         string            `option:"kubeconfig"`
	Context            string            `option:"context"`
	Namespace          string            `option:"namespace"`
	DefaultImage       string            `option:"default_image"`
	ImagePullPolicy    string            `option:"image_pull_policy"`
	ImagePullSecrets   []string          `option:"image_pull_secrets"`
	NodeSelector       map[string]string `option:"node_selector"`
	Tolerations        []string          `option:"tolerations"`
	ServiceAccount     string            `option:"service_account"`
	Labels             map[string]string `option:"labels"`
	Annotations        map[string]string `option:"annotations"`
	HostNetwork        bool              `option:"host_network"`
	RunAsUser          int64             `option:"run_as_user"`
	Squid              *bool             `option:"squid"`
	MaxFileDescriptors int               `option:"max_file_descriptors"`
	AllowClients       []string          `option:"allow_clients"`
	AllowTargets       []string          `option:"allow_targets"`
	CallTimeout        time.Duration     `option:"call_timeout"`
	PendingTimeout     time.Duration     `option:"pending_timeout"`
	DeleteTimeout      time.Duration     `option:"delete_timeout"`
}

// settings are options that were found valid, with their defaults.
type settings struct {
	options
	squid       bool
	tolerations []corev1.Toleration
}

const (
	// defaultImage is Canonical's squid. Who wants every pod the same pins a
	// digest in default_image.
	defaultImage = "docker.io/ubuntu/squid:latest"
	// proxyUser is the account "proxy" of Debian and Ubuntu, which squid runs as.
	proxyUser = 13
	// defaultFileDescriptors bounds squid: it allocates tables for as many as
	// the node allows, which is 1G entries on some, and is killed for memory.
	defaultFileDescriptors = 8192
)

// privateClients may use a proxy unless allow_clients says otherwise: a pod
// network is reachable by more than the crawlers, but not by the world.
var privateClients = []string{"10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "::1", "fc00::/7"}

// parse decodes and validates; every problem is told at once.
func parse(raw map[string]any) (settings, error) {
	var o options
	if err := provider.DecodeOptions(raw, &o); err != nil {
		return settings{}, err
	}
	s := settings{options: o, squid: o.Squid == nil || *o.Squid}
	s.defaults()
	problems := s.problems()
	for _, text := range s.Tolerations {
		toleration, err := parseToleration(text)
		if err != nil {
			problems = append(problems, err)
		}
		s.tolerations = append(s.tolerations, toleration)
	}
	return s, errors.Join(problems...)
}

func (s *settings) defaults() {
	if s.Namespace == "" {
		s.Namespace = "default"
	}
	if s.DefaultImage == "" {
		s.DefaultImage = defaultImage
	}
	if s.RunAsUser == 0 {
		s.RunAsUser = proxyUser
	}
	if s.MaxFileDescriptors == 0 {
		s.MaxFileDescriptors = defaultFileDescriptors
	}
	if s.AllowClients == nil {
		s.AllowClients = privateClients
	}
	for value, fallback := range map[*time.Duration]time.Duration{
		&s.CallTimeout: 30 * time.Second, &s.PendingTimeout: 2 * time.Minute, &s.DeleteTimeout: 20 * time.Second,
	} {
		if *value == 0 {
			*value = fallback
		}
	}
}

func (s *settings) problems() (problems []error) {
	wrong := func(key string, value any, want string) {
		problems = append(problems, fmt.Errorf("%q: %v: want %s", key, value, want))
	}
	if len(validation.IsDNS1123Label(s.Namespace)) > 0 {
		wrong("namespace", s.Namespace, "the name of a namespace")
	}
	if s.Kubeconfig != "" && !filepath.IsAbs(s.Kubeconfig) {
		wrong("kubeconfig", s.Kubeconfig, "an absolute path")
	}
	switch corev1.PullPolicy(s.ImagePullPolicy) {
	case "", corev1.PullAlways, corev1.PullIfNotPresent, corev1.PullNever:
	default:
		wrong("image_pull_policy", s.ImagePullPolicy, "Always, IfNotPresent or Never")
	}
	if s.RunAsUser < 1 {
		wrong("run_as_user", s.RunAsUser, "the number of an account other than root")
	}
	if s.MaxFileDescriptors < 64 || s.MaxFileDescriptors > 1<<20 {
		wrong("max_file_descriptors", s.MaxFileDescriptors, "64 to 1048576")
	}
	for key, value := range map[string]time.Duration{
		"call_timeout": s.CallTimeout, "pending_timeout": s.PendingTimeout, "delete_timeout": s.DeleteTimeout,
	} {
		if value < time.Second {
			wrong(key, value, "1s or more")
		}
	}
	if len(s.AllowClients) == 0 {
		wrong("allow_clients", s.AllowClients, "a network at least: nobody could use the proxies")
	}
	for key, networks := range map[string][]string{"allow_clients": s.AllowClients, "allow_targets": s.AllowTargets} {
		for _, network := range networks {
			if !isNetwork(network) {
				wrong(key, network, "a network such as 10.0.0.0/8")
			}
		}
	}
	for key, value := range s.Labels {
		if strings.HasPrefix(key, "egress-") || len(validation.IsQualifiedName(key)) > 0 || len(validation.IsValidLabelValue(value)) > 0 {
			wrong("labels", key+"="+value, "a Kubernetes label that doesn't begin with egress-")
		}
	}
	for key := range s.Annotations {
		if strings.HasPrefix(key, "egress-") || len(validation.IsQualifiedName(strings.ToLower(key))) > 0 {
			wrong("annotations", key, "a Kubernetes annotation that doesn't begin with egress-")
		}
	}
	return problems
}

func isNetwork(s string) bool {
	if _, err := netip.ParsePrefix(s); err == nil {
		return true
	}
	_, err := netip.ParseAddr(s)
	return err == nil
}

// parseToleration reads what kubectl taint writes: key=value:Effect, where the
// value and the effect may be missing.
func parseToleration(text string) (corev1.Toleration, error) {
	pair, effect, _ := strings.Cut(text, ":")
	key, value, hasValue := strings.Cut(pair, "=")
	toleration := corev1.Toleration{Key: key, Value: value, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffect(effect)}
	if hasValue {
		toleration.Operator = corev1.TolerationOpEqual
	}
	switch toleration.Effect {
	case "", corev1.TaintEffectNoSchedule, corev1.TaintEffectPreferNoSchedule, corev1.TaintEffectNoExecute:
		if len(validation.IsQualifiedName(key)) == 0 {
			return toleration, nil
		}
	}
	return toleration, fmt.Errorf("%q: %q: want key=value:Effect with the effect NoSchedule, PreferNoSchedule or NoExecute",
		"tolerations", text)
}
