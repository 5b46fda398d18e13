package e2e_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/egress-proxies/egress/e2e/cluster"
	bed "github.com/egress-proxies/egress/e2e/hypervisor"
	"github.com/egress-proxies/egress/e2e/origin"
	"github.com/egress-proxies/egress/lease/api"
)

// The environment of a test that runs inside of namespaces.
const (
	insidePlugin = "EGRESS_E2E_INSIDE_PLUGIN"
	insideGuest  = "EGRESS_E2E_INSIDE_GUEST"
)

// enclose makes everything that it starts see a network and processes of its
// own, and ends all of it with the program that it was asked to run. dash as
// the first process also waits for orphans, which libvirt's machines are.
const enclose = `ip link set lo up && "$@"
exit $?`

// inside runs the calling test again in network, mount and process namespaces
// of its own, where machines have addresses that can be reached, and is true
// there. When that run ends, however it does, the kernel ends all that it
// started and removes its network and its mounts.
func inside(t *testing.T) bool {
	t.Helper()
	if os.Getenv(insidePlugin) != "" {
		return true
	}
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Minute)
	defer cancel()
	image, err := bed.Guest(ctx)
	if err != nil {
		t.Fatal(err)
	}
	binary, err := plugin()
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	// The kernel ends unshare with the thread that started it.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cmd := exec.CommandContext(ctx, "unshare", "--net", "--mount", "--propagation", "private", "--pid", "--fork", "--mount-proc", "--kill-child",
		"sh", "-c", enclose, "sh", self, "-test.run", "^"+t.Name()+"$", "-test.v", "-test.timeout", "14m")
	cmd.Env = append(os.Environ(), insidePlugin+"="+binary, insideGuest+"="+image)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("inside: %v\n%s", err, out)
	}
	t.Logf("inside:\n%s", out)
	return false
}

// machines are two hypervisors with a network each, and a cluster whose
// provider "hv" uses both.
type machines struct {
	*fixture
	// a is reached over SSH and gives addresses by a libvirt network; b is
	// reached through its socket, and its guests are on a bridge of the host.
	a, b *libvirtHost
	// site is what the guests' proxies are probed against.
	site string
}

func newMachines(t *testing.T) *machines {
	t.Helper()
	under, err := os.MkdirTemp("", "egress-e2e-vm-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(under) })
	m := &machines{}
	for name, host := range map[string]**libvirtHost{"a": &m.a, "b": &m.b} {
		h := newLibvirtHost(t, filepath.Join(under, name))
		t.Cleanup(h.unmount)
		h.pool("default")
		h.virsh("pool-start", "default")
		*host = h
	}
	m.a.network(`<network><name>default</name><forward mode="open"/><bridge name="egbra"/>
<ip address="10.77.1.1" netmask="255.255.255.0"><dhcp><range start="10.77.1.50" end="10.77.1.99"/></dhcp></ip></network>`)
	m.b.bridge("egbrb", "10.77.2")

	m.site = serve(t, "10.77.1.1:0", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		client, _, _ := net.SplitHostPort(r.RemoteAddr)
		if r.URL.Path == "/ip" {
			fmt.Fprintln(w, client)
			return
		}
		_ = json.NewEncoder(w).Encode(origin.Page{Client: client, URL: r.URL.String()})
	}))
	c, err := cluster.Start(t.Context(), m.config(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	m.fixture = newFixture(t, c)
	t.Cleanup(m.consoles)
	return m
}

// consoles shows the end of what each machine printed, once the test failed.
func (m *machines) consoles() {
	if !m.t.Failed() {
		return
	}
	for _, h := range []*libvirtHost{m.a, m.b} {
		files, _ := filepath.Glob(filepath.Join(h.dir, "pools", "default", "*.log"))
		for _, file := range files {
			text, err := os.ReadFile(file)
			m.t.Logf("%s: %v\n%s", file, err, text[max(0, len(text)-3000):])
		}
	}
}

// config is that of the cluster: the image comes over HTTP, and is proven.
func (m *machines) config(t *testing.T) cluster.Config {
	t.Helper()
	image, err := os.ReadFile(os.Getenv(insideGuest))
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(image)
	web := serve(t, "127.0.0.1:0", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.ServeContent(w, r, "", time.Now(), bytes.NewReader(image))
	}))
	config := cluster.Config{
		PluginBin: os.Getenv(insidePlugin),
		Probe: fmt.Sprintf("urls = [%q]\ninterval = \"1s\"\ntimeout = \"10s\"\nfailures = 5\nexit_ip_url = %q",
			m.site+"/", m.site+"/ip"),
		PluginConfig: fmt.Sprintf(`
provider "hv" {
  type = "kvm"
  host "a" {
    address          = "ssh://root@%s"
    socket           = %q
    key_file         = %q
    known_hosts_file = %q
  }
  host "b" {
    address = "unix://%s"
    network = "bridge:egbrb"
  }
  image "micro" {
    url      = "%s/micro.qcow2"
    sha256   = %q
    firmware = "bios"
  }
  machine_type "small" {
    cores      = 1
    memory_mib = 256
  }
  default_image        = "micro"
  default_machine_type = "small"
}`, m.a.SSH, m.a.Socket, m.a.Key, m.a.KnownHosts, m.b.Socket, web, hex.EncodeToString(sum[:])),
	}
	if err := config.Servers(); err != nil {
		t.Fatal(err)
	}
	return config
}

// serve runs a web server until the test ends and gives its root.
func serve(t *testing.T, address string, handler http.Handler) string {
	t.Helper()
	listener, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: handler}
	done := make(chan error, 1)
	go func() { done <- server.Serve(listener) }()
	t.Cleanup(func() {
		_ = server.Close()
		if err := <-done; !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	})
	return "http://" + listener.Addr().String()
}

// bridge makes a bridge with a DHCP server that libvirt knows nothing of.
func (h *libvirtHost) bridge(name, network string) {
	h.t.Helper()
	h.must("ip", "link", "add", name, "type", "bridge", "stp_state", "0", "forward_delay", "0")
	h.must("ip", "addr", "add", network+".1/24", "dev", name)
	h.must("ip", "link", "set", name, "up")
	cmd := exec.Command("dnsmasq", "--keep-in-foreground", "--conf-file=/dev/null", "--user=root", "--interface="+name, "--bind-interfaces",
		"--except-interface=lo", "--no-resolv", "--no-hosts", "--no-ping", "--dhcp-authoritative",
		"--dhcp-range="+network+".50,"+network+".99,255.255.255.0,1h",
		"--dhcp-leasefile="+filepath.Join(h.dir, "leases"), "--pid-file=", "--log-facility="+filepath.Join(h.dir, "dnsmasq.log"))
	if err := cmd.Start(); err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
}

// domains are the names of the machines on a host, running or not.
func (h *libvirtHost) domains() []string {
	h.t.Helper()
	return strings.Fields(h.must("virsh", "-q", "-c", "qemu:///system?socket="+h.Socket, "list", "--all", "--name"))
}

// volumes are the names of what is in the pool, apart from images.
func (h *libvirtHost) volumes() (left []string) {
	h.t.Helper()
	files, err := filepath.Glob(filepath.Join(h.dir, "pools", "default", "*"))
	if err != nil {
		h.t.Fatal(err)
	}
	for _, file := range files {
		if name := filepath.Base(file); !strings.HasPrefix(name, "egress-base-") {
			left = append(left, name)
		}
	}
	return left
}

// TestMachinesOnTwoHostsAreLeased is the way of a fleet of virtual machines:
// launched on both hosts, found, probed, registered, leased, fetched through;
// it lives through a restart of libvirtd, comes back after a loss, and leaves
// nothing but the images.
func TestMachinesOnTwoHostsAreLeased(t *testing.T) {
	t.Parallel()
	if !inside(t) {
		return
	}
	m := newMachines(t)
	lease := m.leaseService(nil)
	began := time.Now()
	m.load("kvm", m.name, map[string]string{
		"count": "2", "kill_timeout": "20s",
		"user_data": "#cloud-config\nwrite_files:\n  - path: /run/marker\n    content: consumed\n",
	})
	entries := m.passing(2)
	t.Logf("two machines pass after %.1f s", time.Since(began).Seconds())
	if a, b := m.a.domains(), m.b.domains(); len(a) != 1 || len(b) != 1 {
		t.Errorf("machines on a: %q, on b: %q; want one on each", a, b)
	}
	for _, entry := range entries {
		if !strings.HasPrefix(entry.Service.Address, "10.77.") || entry.Service.Meta["exit_ip"] != entry.Service.Address {
			t.Errorf("registered %s with exit %q; want the machine's own address", entry.Service.Address, entry.Service.Meta["exit_ip"])
		}
	}
	seen := map[string]bool{}
	for range 2 {
		granted := lease.acquire(api.Acquire{Target: m.site, TTL: api.Duration(patience)})
		proxy, err := url.Parse(granted.URL)
		if err != nil {
			t.Fatal(err)
		}
		page, err := m.fetch(t.Context(), proxy, m.site+"/")
		if err != nil || page.Client != proxy.Hostname() || seen[page.Client] {
			t.Errorf("through %s: seen as %q, %v; before %v", proxy.Host, page.Client, err, seen)
		}
		seen[page.Client] = true
	}
	for _, alloc := range m.running(m.name, 2) {
		m.until("the console is in the logs", func(ctx context.Context) error {
			text, err := m.logs(ctx, alloc.ID)
			if err == nil && !strings.Contains(text, "seed of "+m.instance(alloc.ID)) {
				err = fmt.Errorf("logs:\n%s", text)
			}
			return err
		})
		if out := m.exec(alloc.ID, "sh", "-c", "cat /run/marker; exit 3"); !strings.Contains(out, "consumed") || !strings.Contains(out, "exit status 3") {
			t.Errorf("exec: %q; want what the seed wrote, and the exit code", out)
		}
	}
	m.libvirtRestarts()
	m.lostMachineComesBack()
	m.stop(m.name)
	for _, h := range []*libvirtHost{m.a, m.b} {
		if d, v := h.domains(), h.volumes(); len(d) != 0 || len(v) != 0 {
			t.Errorf("%s: left behind: machines %q, volumes %q", h.dir, d, v)
		}
	}
}

// exec is `nomad alloc exec`, and how it ended.
func (m *machines) exec(alloc string, command ...string) string {
	m.t.Helper()
	nomad, err := cluster.Server("nomad", "EGRESS_NOMAD_BIN")
	if err != nil {
		m.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(m.t.Context(), patience)
	defer cancel()
	args := append([]string{"alloc", "exec", "-address=" + m.Nomad.Address, "-i=false", "-t=false", alloc}, command...)
	out, err := exec.CommandContext(ctx, nomad, args...).CombinedOutput()
	return fmt.Sprintf("%s (%v)", out, err)
}

// libvirtRestarts is case 7: tasks go on, and the node is healthy again.
func (m *machines) libvirtRestarts() {
	m.t.Helper()
	before := m.fields(m.name, allocID)
	m.b.kill()
	m.b.after = "again"
	m.b.start()
	m.attributes(m.Nomad.Node, map[string]string{"hv.b.ready": "true"})
	m.passing(2)
	if after := m.fields(m.name, allocID); strings.Join(after, " ") != strings.Join(before, " ") {
		m.t.Errorf("allocations before the restart of libvirtd %q, after it %q", before, after)
	}
}

// lostMachineComesBack destroys a machine behind Nomad's back.
func (m *machines) lostMachineComesBack() {
	m.t.Helper()
	m.b.virsh("destroy", m.b.domains()[0])
	m.event(m.name, "Terminated", "destroyed")
	m.until("two machines pass again", func(ctx context.Context) error {
		entries, err := m.Consul.Passing(ctx, m.name)
		if n := len(m.a.domains()) + len(m.b.domains()); err == nil && (len(entries) != 2 || n != 2) {
			err = fmt.Errorf("%d passing, %d machines", len(entries), n)
		}
		return err
	})
}
