// Package leasetest runs a real Consul for tests of the lease service.
package leasetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"
)

// Consul is a Consul server of a test's own, with its state on disk.
type Consul struct {
	// Address is that of its HTTP API; it stays the same over restarts.
	Address string
	// Client talks to it.
	Client *api.Client

	// raft is the address by which the servers know each other.
	raft   string
	dir    string
	t      testing.TB
	args   []string
	cmd    *exec.Cmd
	output bytes.Buffer
}

// startTimeout bounds the wait for a Consul that elects itself, on a machine
// that is busy with other tests.
const startTimeout = time.Minute

// StartConsul starts a server; it ends with the test. The binary is found by
// EGRESS_CONSUL_BIN, or in the cache that `make test` fills.
func StartConsul(t testing.TB) *Consul {
	t.Helper()
	return StartConsuls(t, 1)[0]
}

// ManagementToken is that of a Consul that StartGuardedConsul started.
const ManagementToken = "00000000-0000-4000-8000-000000000001"

// StartGuardedConsul starts a server that denies what no token allows. Its
// Client has the ManagementToken.
func StartGuardedConsul(t testing.TB) *Consul {
	t.Helper()
	all := prepare(t, 1, ManagementToken, `-hcl=acl { enabled = true default_policy = "deny" tokens { initial_management = "`+ManagementToken+`" agent = "`+ManagementToken+`" } }`)
	all.Start()
	return all[0]
}

// StartConsuls starts n servers that are one cluster, each with its own address.
func StartConsuls(t testing.TB, n int) Consuls {
	t.Helper()
	all := prepare(t, n, "")
	all.Start()
	return all
}

// prepare makes n servers with further arguments; nothing is started.
func prepare(t testing.TB, n int, token string, args ...string) Consuls {
	t.Helper()
	const perServer = 4
	ports := freePorts(t, perServer*n)
	all := make(Consuls, n)
	for i := range all {
		p := ports[perServer*i:]
		c := &Consul{t: t, Address: "127.0.0.1:" + p[0], raft: "127.0.0.1:" + p[1], dir: t.TempDir()}
		c.args = []string{"agent", "-server", "-bootstrap-expect=" + strconv.Itoa(n), "-data-dir=" + c.dir, "-node=test" + strconv.Itoa(i),
			"-bind=127.0.0.1", "-client=127.0.0.1", "-log-level=warn", "-http-port=" + p[0], "-server-port=" + p[1],
			"-serf-lan-port=" + p[2], "-serf-wan-port=" + p[3], "-dns-port=-1", "-grpc-port=-1", "-retry-interval=1s",
			"-hcl=performance { raft_multiplier = 1 }", "-hcl=disable_update_check = true",
			// A server that is killed and started again keeps its vote: without, two
			// faults in a row would leave Consul without a quorum.
			"-hcl=autopilot { cleanup_dead_servers = false }"}
		for j := range n {
			if j != i {
				c.args = append(c.args, "-retry-join=127.0.0.1:"+ports[perServer*j+2])
			}
		}
		c.args = append(c.args, args...)
		config := api.DefaultConfig()
		config.Address, config.Token = c.Address, token
		var err error
		if c.Client, err = api.NewClient(config); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			c.Kill()
			if t.Failed() {
				t.Logf("Consul %s said:\n%s", c.Address, c.output.String())
			}
		})
		all[i] = c
	}
	return all
}

// Start starts it, also again, and waits until it answers.
func (c *Consul) Start() {
	c.t.Helper()
	c.launch()
	c.ready()
}

func (c *Consul) launch() {
	c.t.Helper()
	c.cmd = exec.Command(binary(c.t), c.args...)
	c.cmd.Stdout, c.cmd.Stderr = &c.output, &c.output
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := c.cmd.Start(); err != nil {
		c.t.Fatal(err)
	}
}

func (c *Consul) ready() {
	c.t.Helper()
	Until(c.t, startTimeout, "Consul has a leader and knows its node", func() error {
		nodes, _, err := c.Client.Catalog().Nodes((&api.QueryOptions{RequireConsistent: true}).WithContext(c.t.Context()))
		if err == nil && len(nodes) == 0 {
			err = fmt.Errorf("no node yet")
		}
		return err
	})
}

// Kill ends it at once; its state stays on disk.
func (c *Consul) Kill() {
	if c.cmd == nil {
		return
	}
	_ = c.cmd.Process.Kill()
	_ = c.cmd.Wait()
	c.cmd = nil
}

// Forget ends it at once, and removes its state.
func (c *Consul) Forget() {
	c.t.Helper()
	c.Kill()
	entries, err := os.ReadDir(c.dir)
	for _, entry := range entries {
		err = errors.Join(err, os.RemoveAll(filepath.Join(c.dir, entry.Name())))
	}
	if err != nil {
		c.t.Fatal(err)
	}
}

// Signal sends it a signal: SIGSTOP makes it hang.
func (c *Consul) Signal(s os.Signal) { _ = c.cmd.Process.Signal(s) }

// Proxy registers a proxy as the driver does, or changes it. Without a status it
// has no check: one with a TTL is critical after a restart of Consul until
// somebody renews it.
func (c *Consul) Proxy(id, address string, port int, status string, meta map[string]string) {
	c.t.Helper()
	all := map[string]string{"instance": id, "provider": "test", "scheme": "http", "max_leases": "1"}
	for key, value := range meta {
		all[key] = value
	}
	service := &api.AgentServiceRegistration{
		ID: "egress-" + id, Name: "egress-proxy", Address: address, Port: port, Tags: []string{"egress"}, Meta: all,
	}
	if status != "" {
		service.Check = &api.AgentServiceCheck{CheckID: "egress-" + id, TTL: "1h", Status: status}
	}
	if err := c.Client.Agent().ServiceRegister(service); err != nil {
		c.t.Fatal(err)
	}
}

// Until repeats check until it gives nil, and fails the test at the timeout.
func Until(t testing.TB, timeout time.Duration, what string, check func() error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	for {
		err := check()
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("waited %s for: %s: %v", timeout, what, err)
		case <-ticker.C:
		}
	}
}

// FreePort is a port that was free a moment ago.
func FreePort(t testing.TB) string { return freePorts(t, 1)[0] }

func freePorts(t testing.TB, n int) []string {
	t.Helper()
	ports := make([]string, n)
	for i := range ports {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		ports[i] = strconv.Itoa(l.Addr().(*net.TCPAddr).Port)
	}
	return ports
}

// binary finds Consul.
func binary(t testing.TB) string {
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
	path := filepath.Join(cache, "bin", "consul")
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("no Consul to test with: %v (make test builds it; EGRESS_CONSUL_BIN names another)", err)
	}
	return path
}
