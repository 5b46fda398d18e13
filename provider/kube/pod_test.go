package kube

import (
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/egress-proxies/egress/provider"
)

var created = time.Date(2026, 11, 30, 8, 0, 0, 0, time.UTC)

// fullSpec has everything that a pod takes.
func fullSpec() provider.Spec {
	return provider.Spec{
		Name: "eg-0123456789abcdef", Zone: "eu-1a", Image: "registry.example/squid:6", Port: 80,
		Args: []string{"-X"}, Env: []string{"A=1", "B=$(A) costs $5", "C"}, UserData: []byte("#!/bin/sh\n"),
		Auth:      provider.Credentials{Username: "crawl", Password: "hunter2"},
		Resources: provider.Resources{CPUMHz: 500, MemoryMiB: 256},
		Labels: provider.Labels{
			Cluster: "prod", Namespace: "default", Job: "fleet/dispatch-1 (ä)", Group: "proxy",
			Alloc: "a1b2c3d4-0000-4000-8000-000000000000", Task: "proxy", Node: "n1", CreatedAt: created,
		},
	}
}

func TestPod(t *testing.T) {
	minimal := provider.Spec{Name: "eg-0123456789abcdef", Port: 3128, Labels: provider.Labels{Cluster: "prod", CreatedAt: created}}
	command := minimal
	command.Command, command.Args, command.Resources = "/proxy", []string{"-port", "3128"}, provider.Resources{Cores: 2}
	for name, tc := range map[string]struct {
		options map[string]any
		spec    provider.Spec
	}{
		"minimal": {nil, minimal},
		"command": {map[string]any{"host_network": true, "run_as_user": 1000}, command},
		"full": {map[string]any{
			"namespace": "proxies", "image_pull_policy": "IfNotPresent", "image_pull_secrets": []any{"registry"},
			"node_selector": map[string]any{"pool": "egress"}, "tolerations": []any{"egress=only:NoSchedule", "spot"},
			"service_account": "proxy", "labels": map[string]any{"team": "crawl"}, "annotations": map[string]any{"example.org/mesh": "off"},
		}, fullSpec()},
	} {
		t.Run(name, func(t *testing.T) {
			s, err := parse(tc.options)
			if err != nil {
				t.Fatal(err)
			}
			text, err := yaml.Marshal(newPod(s, tc.spec))
			if err != nil {
				t.Fatal(err)
			}
			golden(t, "pod-"+name+".yaml", text)
		})
	}
}

func TestSecretHoldsWhatThePodDoesNotShow(t *testing.T) {
	s, err := parse(nil)
	if err != nil {
		t.Fatal(err)
	}
	spec := fullSpec()
	pod := newPod(s, spec)
	pod.UID = "uid"
	secret, err := newSecret(s, spec, pod)
	if err != nil {
		t.Fatal(err)
	}
	if text := pod.String(); strings.Contains(text, "hunter2") || strings.Contains(text, "crawl") || strings.Contains(text, "/bin/sh") {
		t.Error("the pod shows the credentials or the user-data")
	}
	if file := string(secret.Data[passwordFile]); !strings.HasPrefix(file, "crawl:$2a$") || strings.Contains(file, "hunter2") {
		t.Errorf("password file is %q, want a bcrypt hash", file)
	}
	if got := string(secret.Data[userDataFile]); got != "#!/bin/sh\n" {
		t.Errorf("user-data is %q, want it byte for byte", got)
	}
	if owners := secret.OwnerReferences; len(owners) != 1 || owners[0].UID != "uid" || owners[0].Name != spec.Name {
		t.Errorf("the owner is %v, want the pod: the secret would stay", owners)
	}
	spec.Auth = provider.Credentials{}
	if secret, err = newSecret(s, spec, pod); err != nil || secret.Data[passwordFile] != nil {
		t.Errorf("without credentials: password file %q, %v, want none", secret.Data[passwordFile], err)
	}
}

func TestValidateRefuses(t *testing.T) {
	p := newProvider(t, nil)
	for want, change := range map[string]func(*provider.Spec){
		"machine_type":   func(s *provider.Spec) { s.MachineType = "e2-small" },
		"network_config": func(s *provider.Spec) { s.NetworkConfig = []byte("x") },
		"bind":           func(s *provider.Spec) { s.Bind = "192.0.2.1" },
		"endpoint":       func(s *provider.Spec) { s.Endpoint.Host = "p.example" },
		"port":           func(s *provider.Spec) { s.Port = 0 },
		"zone":           func(s *provider.Spec) { s.Zone = "eu/1" },
		"colon":          func(s *provider.Spec) { s.Auth = provider.Credentials{Username: "a:b", Password: "x"} },
		"#":              func(s *provider.Spec) { s.Auth = provider.Credentials{Username: "#a", Password: "x"} },
		"control":        func(s *provider.Spec) { s.Auth = provider.Credentials{Username: "a", Password: "x\n"} },
		"73 bytes": func(s *provider.Spec) {
			s.Auth = provider.Credentials{Username: "a", Password: strings.Repeat("x", 73)}
		},
		"user name": func(s *provider.Spec) { s.Auth = provider.Credentials{Password: "x"} },
	} {
		spec := provider.Spec{Port: 3128}
		change(&spec)
		if err := p.Validate(spec); provider.Classify(err) != provider.ErrPermanent || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want ErrPermanent that names it", want, err)
		}
	}
	spec := fullSpec()
	if err := p.Validate(spec); err != nil {
		t.Error(err)
	}
	spec.Port = 80
	if err := p.Validate(spec); err != nil {
		t.Errorf("port 80: %v, want it taken: a pod has its own", err)
	}
	if err := newProvider(t, map[string]any{"host_network": true}).Validate(spec); err == nil || !strings.Contains(err.Error(), "80") {
		t.Errorf("port 80 of the node: %v, want a refusal", err)
	}
}

func newProvider(t *testing.T, options map[string]any) *Provider {
	t.Helper()
	p, err := New(provider.Config{Name: "k", Type: Type, Options: options}, provider.Env{Cluster: "contract"})
	if err != nil {
		t.Fatal(err)
	}
	return p.(*Provider)
}
