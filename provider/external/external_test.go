package external

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/egress-proxies/egress/provider"
	"github.com/egress-proxies/egress/provider/providertest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func newProvider(t *testing.T, dir, cluster string) *Provider {
	t.Helper()
	built, err := provider.Factories{Type: New}.Build(
		provider.Config{Name: "bought", Type: Type}, provider.Env{Cluster: cluster, StateDir: dir})
	if err != nil {
		t.Fatal(err)
	}
	p, ok := built.(*Provider)
	if !ok {
		t.Fatalf("built a %T", built)
	}
	return p
}

func TestContract(t *testing.T) {
	dir := t.TempDir()
	providertest.Run(t, providertest.Harness{
		New: func(t *testing.T, cluster string) provider.Provider { return newProvider(t, dir, cluster) },
		Spec: func(*testing.T) provider.Spec {
			return provider.Spec{Endpoint: provider.Endpoint{Host: "proxy.example", Port: 3128}}
		},
		UnknownZone: "elsewhere",
		Count: func(t *testing.T, name string) int {
			matches, err := filepath.Glob(filepath.Join(dir, name+"*"))
			if err != nil {
				t.Fatal(err)
			}
			return len(matches)
		},
		Partials: []providertest.Partial{{
			Name: "RecordCutOff",
			Make: func(t *testing.T, spec provider.Spec) {
				if err := os.WriteFile(filepath.Join(dir, spec.Name+extension), []byte(`{"host":"pro`), 0o600); err != nil {
					t.Fatal(err)
				}
			},
		}},
		Faults: []providertest.Fault{{
			Name: "StateDirIsAFile", Class: provider.ErrTransient,
			Provider: func(t *testing.T) provider.Provider {
				file := filepath.Join(t.TempDir(), "file")
				if err := os.WriteFile(file, nil, 0o600); err != nil {
					t.Fatal(err)
				}
				return newProvider(t, filepath.Join(file, "state"), "contract")
			},
		}},
	})
}

func TestValidate(t *testing.T) {
	p := newProvider(t, t.TempDir(), "test")
	good := provider.Spec{Endpoint: provider.Endpoint{Host: "proxy.example", Port: 3128}}
	for _, test := range []struct {
		name   string
		change func(*provider.Spec)
		want   string // in the error; empty is success
	}{
		{"no endpoint", func(s *provider.Spec) { s.Endpoint = provider.Endpoint{} }, "endpoint: missing"},
		{"port 0", func(s *provider.Spec) { s.Endpoint.Port = 0 }, "port 0: want 1 to 65535"},
		{"port too high", func(s *provider.Spec) { s.Endpoint.Port = 65536 }, "port 65536"},
		{"a URL", func(s *provider.Spec) { s.Endpoint.Host = "http://proxy.example" }, "without scheme and port"},
		{"host and port", func(s *provider.Spec) { s.Endpoint.Host = "proxy.example:80" }, "without scheme and port"},
		{"bracketed", func(s *provider.Spec) { s.Endpoint.Host = "[2001:db8::1]" }, "character '['"},
		{"empty label", func(s *provider.Spec) { s.Endpoint.Host = "proxy..example" }, "want a host name"},
		{"unspecified", func(s *provider.Spec) { s.Endpoint.Host = "0.0.0.0" }, "can be connected to"},
		{"zone", func(s *provider.Spec) { s.Zone = "hv1" }, `zone: "hv1"`},
		{"command", func(s *provider.Spec) { s.Command = "squid" }, "command: the external provider launches nothing"},
		{"image", func(s *provider.Spec) { s.Image = "debian-12" }, "image:"},
		{"user with a colon", func(s *provider.Spec) { s.Auth.Username = "a:b" }, "colon"},
		{"name", func(*provider.Spec) {}, ""},
		{"IPv4", func(s *provider.Spec) { s.Endpoint.Host = "198.51.100.7" }, ""},
		{"IPv6", func(s *provider.Spec) { s.Endpoint.Host = "2001:db8::1" }, ""},
		{"underscore", func(s *provider.Spec) { s.Endpoint.Host = "p_1.example." }, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			spec := good
			test.change(&spec)
			err := p.Validate(spec)
			if test.want == "" {
				if err != nil {
					t.Fatal(err)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), test.want) || !errors.Is(err, provider.ErrPermanent) {
				t.Fatalf("got %v, want a permanent error with %q", err, test.want)
			}
		})
	}
}

func TestChangedEndpointReplacesTheOld(t *testing.T) {
	p := newProvider(t, t.TempDir(), "test")
	spec := provider.Spec{Name: provider.Name("test", "a", "b"), Endpoint: provider.Endpoint{Host: "old.example", Port: 1}}
	for _, host := range []string{"old.example", "new.example"} {
		spec.Endpoint.Host = host
		if _, err := p.Create(t.Context(), spec); err != nil {
			t.Fatal(err)
		}
		got, err := p.Get(t.Context(), provider.Ref{Name: spec.Name})
		if err != nil || got.Address != host {
			t.Fatalf("after create with %s: address %q, %v", host, got.Address, err)
		}
	}
}

func TestPasswordIsNotKept(t *testing.T) {
	dir := t.TempDir()
	spec := provider.Spec{
		Name: provider.Name("test", "a", "b"), Endpoint: provider.Endpoint{Host: "proxy.example", Port: 1},
		Auth: provider.Credentials{Username: "crawl", Password: "secret-word"},
	}
	if _, err := newProvider(t, dir, "test").Create(t.Context(), spec); err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(filepath.Join(dir, spec.Name+extension))
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(content), spec.Auth.Password) {
		t.Errorf("the record holds the password: %s", content)
	}
}

func TestUnknownOption(t *testing.T) {
	_, err := New(provider.Config{Options: map[string]any{"host": "x"}}, provider.Env{StateDir: t.TempDir()})
	if err == nil || !strings.Contains(err.Error(), `unknown key "host"`) {
		t.Fatalf("got %v, want the unknown key named", err)
	}
}
