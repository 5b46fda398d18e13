package command

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/egress-proxies/egress/lease/api"
	"github.com/egress-proxies/egress/lease/client"
	"github.com/egress-proxies/egress/lease/leasetest"
)

// TestMain lets the test binary be a replica of the lease service.
func TestMain(m *testing.M) {
	if os.Getenv("EGRESS_TEST_REPLICA") == "" {
		os.Exit(m.Run())
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	root := &cobra.Command{Use: "egress", SilenceUsage: true}
	root.AddCommand(Commands()...)
	err := root.ExecuteContext(ctx)
	stop()
	if err != nil {
		os.Exit(1)
	}
	os.Exit(0)
}

// replica is a lease service in a process of its own.
type replica struct {
	t       *testing.T
	address string
	args    []string
	client  *client.Client
	cmd     *exec.Cmd
	output  lockedBuffer
}

// lockedBuffer is written by a process and read by a test.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// newReplica starts one that asks Consul at the address; it ends with the test.
func newReplica(t *testing.T, consul string, args ...string) *replica {
	t.Helper()
	r := &replica{t: t, address: "127.0.0.1:" + leasetest.FreePort(t)}
	r.args = append([]string{"lease", "serve", "--listen", r.address, "--consul-address", consul, "--log-level", "warn"}, args...)
	var err error
	r.client, err = client.New(client.Config{Address: "http://" + r.address, HTTP: &http.Client{Timeout: 5 * time.Second}})
	if err != nil {
		t.Fatal(err)
	}
	r.start()
	t.Cleanup(func() {
		r.signal(syscall.SIGCONT)
		r.kill()
		if t.Failed() {
			t.Logf("replica %s said:\n%s", r.address, r.output.String())
		}
	})
	return r
}

func (r *replica) start() {
	r.cmd = exec.Command(os.Args[0], r.args...)
	r.cmd.Env = append(os.Environ(), "EGRESS_TEST_REPLICA=1")
	r.cmd.Stdout, r.cmd.Stderr = &r.output, &r.output
	r.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := r.cmd.Start(); err != nil {
		r.t.Fatal(err)
	}
}

func (r *replica) signal(s syscall.Signal) {
	if r.cmd != nil {
		_ = r.cmd.Process.Signal(s)
	}
}

// kill ends it at once.
func (r *replica) kill() {
	if r.cmd == nil {
		return
	}
	_ = r.cmd.Process.Kill()
	_ = r.cmd.Wait()
	r.cmd = nil
}

// stop ends it in order.
func (r *replica) stop() {
	r.signal(syscall.SIGTERM)
	r.ended()
}

// ended waits for the end of one that was asked to stop.
func (r *replica) ended() {
	if err := r.cmd.Wait(); err != nil {
		r.t.Errorf("replica %s ended with %v", r.address, err)
	}
	r.cmd = nil
}

// ready waits until it can grant leases, itself or through the leader.
func (r *replica) ready() {
	r.t.Helper()
	leasetest.Until(r.t, time.Minute, r.address+" is ready", func() error {
		response, err := http.Get("http://" + r.address + "/readyz")
		if err != nil {
			return err
		}
		defer response.Body.Close()
		if response.StatusCode != http.StatusOK {
			return fmt.Errorf("%s", response.Status)
		}
		return nil
	})
}

// metrics is what it tells Prometheus.
func (r *replica) metrics() (string, error) {
	response, err := http.Get("http://" + r.address + api.PathMetrics)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	return string(text), err
}
