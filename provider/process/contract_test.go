package process

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"go.uber.org/goleak"

	"github.com/egress-proxies/egress/provider"
	"github.com/egress-proxies/egress/provider/process/supervise"
	"github.com/egress-proxies/egress/provider/providertest"
)

func TestMain(m *testing.M) {
	if spec := os.Getenv(pluginSpec); spec != "" {
		pluginMain(os.Getenv(pluginDir), spec)
	}
	goleak.VerifyTestMain(m)
}

// newProvider is a restarted plugin each time it is called for one dir.
func newProvider(t *testing.T, dir, cluster string, options map[string]any) *Provider {
	t.Helper()
	built, err := provider.Factories{Type: New}.Build(
		provider.Config{Name: "local", Type: Type, Options: options},
		provider.Env{Cluster: cluster, StateDir: dir},
	)
	if err != nil {
		t.Fatal(err)
	}
	p, ok := built.(*Provider)
	if !ok {
		t.Fatalf("built a %T", built)
	}
	return p
}

// freePort is a port of loopback that nothing listens on.
func freePort(t *testing.T) int {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	addr, ok := listener.Addr().(*net.TCPAddr)
	if !ok {
		t.Fatal("not a TCP address")
	}
	return addr.Port
}

// things counts the files and the processes of an instance.
func things(t *testing.T, dir string) int {
	t.Helper()
	count := 0
	err := filepath.WalkDir(dir, func(_ string, _ fs.DirEntry, err error) error {
		if err == nil {
			count++
		}
		return nil
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	marked, err := supervise.Marked(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, process := range marked {
		if process.Alive() {
			count++
		}
	}
	return count
}

func TestContract(t *testing.T) {
	dir := t.TempDir()
	prepared := func(t *testing.T, spec provider.Spec) string {
		t.Helper()
		p := newProvider(t, dir, spec.Labels.Cluster, nil)
		plan, err := p.plan(spec)
		if err != nil {
			t.Fatal(err)
		}
		instance := filepath.Join(dir, spec.Name)
		if err := supervise.Prepare(instance, plan); err != nil {
			t.Fatal(err)
		}
		return instance
	}
	providertest.Run(t, providertest.Harness{
		New: func(t *testing.T, cluster string) provider.Provider { return newProvider(t, dir, cluster, nil) },
		Spec: func(t *testing.T) provider.Spec {
			return provider.Spec{Listen: "127.0.0.1", Port: freePort(t)}
		},
		UnknownZone: "elsewhere",
		Count:       func(t *testing.T, name string) int { return things(t, filepath.Join(dir, name)) },
		End: func(t *testing.T, instance provider.Instance) {
			snapshot, err := supervise.Inspect(filepath.Join(dir, instance.Name))
			if err != nil {
				t.Fatal(err)
			}
			if err := snapshot.Run.Child.Signal(syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
		},
		Partials: []providertest.Partial{
			{Name: "DirectoryMade", Make: func(t *testing.T, spec provider.Spec) {
				if err := os.Mkdir(filepath.Join(dir, spec.Name), 0o700); err != nil {
					t.Fatal(err)
				}
			}},
			{Name: "PlanHalfWritten", Make: func(t *testing.T, spec provider.Spec) {
				instance := prepared(t, spec)
				if err := os.Rename(filepath.Join(instance, "plan.json"), filepath.Join(instance, ".plan.json-1")); err != nil {
					t.Fatal(err)
				}
			}},
			{Name: "PlanWritten", Make: func(t *testing.T, spec provider.Spec) { prepared(t, spec) }},
			{Name: "SupervisorStarted", Make: func(t *testing.T, spec provider.Spec) {
				// Nobody waits for its word, as after a kill of the plugin.
				if _, err := supervise.Start(prepared(t, spec)); err != nil {
					t.Fatal(err)
				}
			}},
			{Name: "DeleteCutOff", Make: func(t *testing.T, spec provider.Spec) {
				if err := os.Remove(filepath.Join(prepared(t, spec), "lock")); err != nil {
					t.Fatal(err)
				}
			}},
		},
		Faults: []providertest.Fault{
			{Name: "StateDirIsAFile", Class: provider.ErrTransient, Provider: func(t *testing.T) provider.Provider {
				file := filepath.Join(t.TempDir(), "file")
				if err := os.WriteFile(file, nil, 0o600); err != nil {
					t.Fatal(err)
				}
				return newProvider(t, file, "contract", nil)
			}},
			{Name: "NoSuchUser", Class: provider.ErrPermanent, Provider: func(t *testing.T) provider.Provider {
				return newProvider(t, dir, "contract", map[string]any{"user": "no-such-account"})
			}},
		},
	})
}

func readFile(t *testing.T, path string) string {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}
