package registry

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"
)

// realAgent is a Consul agent of the test's own, without persistence: a restart
// loses everything.
type realAgent struct {
	t       *testing.T
	address string
	args    []string
	process *exec.Cmd
	client  *api.Client
}

func consulBinary(t testing.TB) string {
	if path := os.Getenv("EGRESS_CONSUL_BIN"); path != "" {
		return path
	}
	cache := os.Getenv("EGRESS_CACHE")
	if cache == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			t.Fatal(err)
		}
		cache = filepath.Join(home, ".cache", "egress")
	}
	return filepath.Join(cache, "bin", "consul")
}

// freePorts holds all of them until the last is picked, so that they differ.
func freePorts(t testing.TB, count int) (ports []int) {
	for range count {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer listener.Close()
		ports = append(ports, listener.Addr().(*net.TCPAddr).Port)
	}
	return ports
}

func startConsul(t *testing.T, config string) *realAgent {
	t.Helper()
	ports := freePorts(t, 4)
	args := []string{"agent", "-dev", "-bind=127.0.0.1", "-client=127.0.0.1", "-log-level=error", "-dns-port=-1", "-grpc-port=-1",
		fmt.Sprintf("-http-port=%d", ports[0]), fmt.Sprintf("-server-port=%d", ports[1]),
		fmt.Sprintf("-serf-lan-port=%d", ports[2]), fmt.Sprintf("-serf-wan-port=%d", ports[3])}
	if config != "" {
		path := filepath.Join(t.TempDir(), "acl.hcl")
		if err := os.WriteFile(path, []byte(config), 0o600); err != nil {
			t.Fatal(err)
		}
		args = append(args, "-config-file="+path)
	}
	a := &realAgent{t: t, address: fmt.Sprintf("127.0.0.1:%d", ports[0]), args: args}
	client, err := api.NewClient(&api.Config{Address: a.address, Token: "root"})
	if err != nil {
		t.Fatal(err)
	}
	a.client = client
	t.Cleanup(a.stop)
	a.start()
	return a
}

func (a *realAgent) start() {
	a.t.Helper()
	a.process = exec.Command(consulBinary(a.t), a.args...)
	a.process.Stderr = os.Stderr
	if err := a.process.Start(); err != nil {
		a.t.Fatalf("consul can't be started, `make servers` builds it: %v", err)
	}
	a.eventually("consul has a leader and its own node", func() bool {
		nodes, _, err := a.client.Catalog().Nodes(nil)
		return err == nil && len(nodes) > 0
	})
}

func (a *realAgent) stop() {
	if a.process != nil {
		a.process.Process.Kill()
		a.process.Wait()
		a.process = nil
	}
}

func (a *realAgent) eventually(what string, met func() bool) {
	a.t.Helper()
	eventually(a.t, what, met)
}

func eventually(t *testing.T, what string, met func() bool) {
	t.Helper()
	deadline := time.Now().Add(40 * time.Second)
	for !met() {
		if time.Now().After(deadline) {
			t.Fatalf("never happened: %s", what)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// entry is the endpoint as a reader of the catalog sees it; nil when absent.
func (a *realAgent) entry(name string) (*api.ServiceEntry, *api.HealthCheck) {
	entries, _, err := a.client.Health().Service(DefaultService, "", false, nil)
	if err != nil {
		return nil, nil
	}
	for _, entry := range entries {
		if entry.Service.ID != serviceID(name) {
			continue
		}
		for _, check := range entry.Checks {
			if check.CheckID == serviceID(name) {
				return entry, check
			}
		}
	}
	return nil, nil
}

func (a *realAgent) isStatus(name, want string) func() bool {
	return func() bool {
		_, check := a.entry(name)
		return check != nil && check.Status == want
	}
}

func newRegistry(t *testing.T, config Config) *Registry {
	t.Helper()
	config.Cluster, config.Node = "test", "node-1"
	made, err := New(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := made.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return made
}
