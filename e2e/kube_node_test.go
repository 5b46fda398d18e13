package e2e_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	nomad "github.com/hashicorp/nomad/api"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/egress-proxies/egress/e2e/cluster"
	"github.com/egress-proxies/egress/e2e/guard"
	"github.com/egress-proxies/egress/e2e/kubernetes"
	"github.com/egress-proxies/egress/e2e/origin"
	"github.com/egress-proxies/egress/lease/api"
)

// insideCgroup is the name of the control groups of a test that runs inside of
// namespaces.
const insideCgroup = "EGRESS_E2E_INSIDE_CGROUP"

// insideNode runs the calling test again in network, mount and process
// namespaces of its own, as inside does, and removes the scratch directories and
// the control groups after it. It is true there.
func insideNode(t *testing.T) bool {
	t.Helper()
	if os.Getenv("EGRESS_E2E_FULL") == "" {
		t.Skip("slow: runs with EGRESS_E2E_FULL=1 (make e2e-full)")
	}
	if os.Getenv(insideCgroup) != "" {
		return true
	}
	t.Parallel()
	binary, err := plugin()
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "egress-e2e-node-")
	if err != nil {
		t.Fatal(err)
	}
	group := filepath.Base(dir)
	ending, err := guard.Start(dir, group)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := ending.Close(); err != nil {
			t.Error(err)
		}
		if left, _ := filepath.Glob("/sys/fs/cgroup/*/" + group); len(left) > 0 {
			t.Errorf("control groups left: %q", left)
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	// The kernel ends unshare with the thread that started it.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cmd := exec.CommandContext(ctx, "unshare", "--net", "--mount", "--propagation", "private", "--pid", "--fork", "--mount-proc", "--kill-child",
		"sh", "-c", enclose, "sh", self, "-test.run", "^"+t.Name()+"$", "-test.v", "-test.timeout", "9m")
	cmd.Env = append(os.Environ(), insidePlugin+"="+binary, insideCgroup+"="+group, "TMPDIR="+dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("inside: %v\n%s", err, out)
	}
	t.Logf("inside:\n%s", out)
	return false
}

// newRealPods is a Nomad cluster and a Kubernetes cluster with a real kubelet;
// site is what the pods' proxies are probed against.
func newRealPods(t *testing.T) (p *pods, site string) {
	t.Helper()
	program, err := cluster.Server("k8s", "EGRESS_K8S_BIN")
	if err != nil {
		t.Fatal(err)
	}
	k, err := kubernetes.Start(t.Context(), kubernetes.Config{Program: program, Scheduler: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := k.Close(); err != nil {
			t.Error(err)
		}
	})
	began := time.Now()
	kubelet, err := k.StartKubelet(t.Context(), os.Getenv(insideCgroup), kubernetes.SquidArchive(squidImage))
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("the node is ready after %.1f s", time.Since(began).Seconds())
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(k.Logs(), kubelet.Logs())
		}
	})
	if err := k.Namespace(t.Context(), proxies, roleFile); err != nil {
		t.Fatal(err)
	}
	site = serve(t, kubernetes.Gateway+":0", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		client, _, _ := net.SplitHostPort(r.RemoteAddr)
		if r.URL.Path == "/ip" {
			fmt.Fprintln(w, client)
			return
		}
		_ = json.NewEncoder(w).Encode(origin.Page{Client: client, URL: r.URL.String()})
	}))
	p = &pods{kube: k}
	block := p.block(t, "pods", kubernetes.EgressUser, `image_pull_policy = "IfNotPresent"`,
		fmt.Sprintf("allow_targets = [%q]", kubernetes.PodNetwork))
	config := cluster.Config{
		PluginBin:    os.Getenv(insidePlugin),
		PluginConfig: fmt.Sprintf("credentials_file = %q\n", credentialsFile()) + block,
		Probe: fmt.Sprintf("urls = [%q]\ninterval = \"1s\"\ntimeout = \"10s\"\nfailures = 5\nexit_ip_url = %q",
			site+"/", site+"/ip"),
	}
	if err := config.Servers(); err != nil {
		t.Fatal(err)
	}
	c, err := cluster.Start(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	p.fixture = newFixture(t, c)
	return p, site
}

// TestPodsOnARealNode run squid as it is configured, without privileges and with
// a root file system that can't be written; a lease leads through it; its log,
// a terminal in it, and its end for lack of memory are real.
func TestPodsOnARealNode(t *testing.T) {
	if !insideNode(t) {
		return
	}
	p, site := newRealPods(t)
	lease := p.leaseService(map[string]string{"args": `["--credentials-file", "` + credentialsFile() + `"]`})
	began := time.Now()
	p.load("kube", p.name, map[string]string{"provider": "pods", "count": "1", "auth": "crawl", "memory": "64"})
	entry := p.passing(1)[0]
	t.Logf("the pod passes after %.1f s", time.Since(began).Seconds())
	if !strings.HasPrefix(entry.Service.Address, "10.244.0.") || entry.Service.Meta["exit_ip"] != entry.Service.Address {
		t.Errorf("registered %s with exit %q; want the pod's own address", entry.Service.Address, entry.Service.Meta["exit_ip"])
	}
	granted := lease.acquire(api.Acquire{Target: site, TTL: api.Duration(patience)})
	p.leads(granted.URL, site)
	lease.release(granted)

	alloc := p.running(p.name, 1)[0].ID
	p.until("the access log is in the logs", func(ctx context.Context) error {
		text, err := p.logs(ctx, alloc)
		if err == nil && !strings.Contains(text, "TCP_MISS/200") {
			err = fmt.Errorf("logs:\n%s", text)
		}
		return err
	})
	p.terminal(alloc)
	p.outOfMemory(alloc)
	p.passing(1)
	p.stop(p.name)
	p.empty()
}

// leads fails the test unless the page comes through the proxy.
func (p *pods) leads(proxy, page string) {
	p.t.Helper()
	parsed, err := url.Parse(proxy)
	if err != nil {
		p.t.Fatal(err)
	}
	seen, err := p.fetch(p.t.Context(), parsed, page+"/")
	if err != nil || seen.Client != parsed.Hostname() {
		p.t.Errorf("through %s: seen as %q, %v", parsed.Host, seen.Client, err)
	}
}

// session is what a person types into `nomad alloc exec`, and sees.
type session struct {
	mu   sync.Mutex // guards seen
	seen bytes.Buffer
}

func (s *session) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.seen.Write(b)
}

func (s *session) shows(text string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !strings.Contains(s.seen.String(), text) {
		return fmt.Errorf("no %q in:\n%s", text, s.seen.String())
	}
	return nil
}

// terminal works in a shell of the pod: it has the size that the client's has,
// and gives the exit code.
func (p *pods) terminal(id string) {
	p.t.Helper()
	alloc, _, err := p.Nomad.Client.Allocations().Info(id, nil)
	if err != nil {
		p.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(p.t.Context(), patience)
	defer cancel()
	read, typed, err := os.Pipe()
	if err != nil {
		p.t.Fatal(err)
	}
	defer func() { _, _ = read.Close(), typed.Close() }()
	sizes := make(chan nomad.TerminalSize, 1)
	sizes <- nomad.TerminalSize{Height: 40, Width: 132}
	var screen session
	done := make(chan error, 1)
	go func() {
		code, err := p.Nomad.Client.Allocations().Exec(ctx, alloc, "proxy", true, []string{"/bin/sh"}, read, &screen, &screen, sizes, nil)
		if err == nil && code != 7 {
			err = fmt.Errorf("exit code %d, want 7", code)
		}
		done <- err
	}()
	p.until("the terminal has its size", func(context.Context) error {
		if _, err := fmt.Fprintln(typed, "stty size"); err != nil {
			return err
		}
		return screen.shows("40 132")
	})
	if _, err := fmt.Fprintln(typed, "id; exit 7"); err != nil {
		p.t.Fatal(err)
	}
	if err := <-done; err != nil {
		p.t.Errorf("exec: %v", err)
	}
	if err := screen.shows("uid=13"); err != nil {
		p.t.Error(err)
	}
}

// outOfMemory fills the memory of the pod until the kernel kills its squid.
func (p *pods) outOfMemory(alloc string) {
	p.t.Helper()
	pod := p.pod(alloc)
	limit := pod.Spec.Containers[0].Resources.Limits[corev1.ResourceMemory]
	p.t.Logf("the pod has %s", limit.String())
	// A file in memory, which can't be dropped and isn't the writer's.
	fill := "dd if=/dev/zero of=/dev/shm/fill bs=1M"
	p.t.Log(p.inPod(alloc, "/bin/sh", "-c", fill))
	p.event(p.name, "Terminated", "out of memory")
	p.until("another pod runs", func(context.Context) error {
		pods, err := p.left(p.t.Context())
		if err != nil {
			return err
		}
		if now, err := p.kube.API.CoreV1().Pods(proxies).Get(p.t.Context(), pod.Name, metav1.GetOptions{}); err != nil || now.UID == pod.UID {
			return fmt.Errorf("left %q, %v", pods, err)
		}
		return nil
	})
}

// inPod is `nomad alloc exec`, and how it ended.
func (p *pods) inPod(alloc string, command ...string) string {
	p.t.Helper()
	return (&machines{fixture: p.fixture}).exec(alloc, command...)
}
