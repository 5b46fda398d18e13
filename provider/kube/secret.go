package kube

import (
	"fmt"

	"golang.org/x/crypto/bcrypt"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/egress-proxies/egress/provider"
)

// newSecret holds the files of a pod, and goes with it.
func newSecret(s settings, spec provider.Spec, pod *corev1.Pod) (*corev1.Secret, error) {
	data := make(map[string][]byte)
	if len(spec.UserData) > 0 {
		data[userDataFile] = spec.UserData
	}
	if s.squid && spec.Command == "" {
		c := proxyConfig{
			port: spec.Port, allowClients: s.AllowClients, allowTargets: s.AllowTargets, fileDescriptors: s.MaxFileDescriptors,
		}
		if !spec.Auth.IsZero() {
			c.passwords = filesDir + "/" + passwordFile
			hash, err := bcrypt.GenerateFromPassword([]byte(spec.Auth.Password), bcrypt.DefaultCost)
			if err != nil {
				return nil, provider.Permanentf("\"auth\": %w", err)
			}
			data[passwordFile] = fmt.Appendf(nil, "%s:%s\n", spec.Auth.Username, hash)
		}
		data[squidFile] = []byte(squidConf(c))
	}
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Name: spec.Name, Namespace: s.Namespace, Labels: podLabels(s, spec.Labels),
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID}},
		},
		Immutable: new(true),
		Data:      data,
	}, nil
}
