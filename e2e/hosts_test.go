package e2e_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/egress-proxies/egress/e2e/cluster"
	"github.com/egress-proxies/egress/e2e/guard"
)

// libvirtHost is a real libvirtd with an own network and state, without any
// guest, and an SSH server before it: what a health check can see of a
// hypervisor. Its processes end with the guard over its directory.
type libvirtHost struct {
	t   *testing.T
	dir string
	// Socket is libvirt's.
	Socket string
	// SSH is the address of the SSH server; Key and KnownHosts are for it.
	SSH, Key, KnownHosts string

	namespaces []string // beside the mount namespace, as unshare's flags
	env        []string // for hostScript
	after      string   // "again": the daemon alone is started anew, not the host
	libvirtd   *exec.Cmd
	silent     atomic.Bool // lend lends nothing to anybody new
}

// hostScript starts libvirtd in a mount namespace, and mostly a network
// namespace, of its own, so that it shares nothing with another one on the
// machine.
const hostScript = `set -eu
cd "$0"
[ "$1" = again ] || rm -rf state/run # As after a boot.
ip link set lo up
mount -t sysfs sysfs /sys # The one before shows another network's cards.
for place in /run/libvirt /var/lib/libvirt /var/cache/libvirt /var/log/libvirt /etc/libvirt; do
  mkdir -p $place state$place
  mount --bind state$place $place
done
printf 'stdio_handler = "file"\nsecurity_driver = "none"\nnamespaces = []\ncgroup_controllers = []\nuser = "root"\ngroup = "root"\n' > /etc/libvirt/qemu.conf
# A /dev without kvm, so that the host is the same on every machine.
mkdir -p dev
mount -t tmpfs tmpfs dev
cp -a /dev/null /dev/zero /dev/full /dev/random /dev/urandom /dev/tty /dev/ptmx dev
mkdir dev/pts dev/shm dev/net
cp -a /dev/net/tun dev/net
[ -z "${HOST_KVM:-}" ] || [ ! -e /dev/kvm ] || cp -a /dev/kvm dev # As it is on this machine.
[ -z "${HOST_NAME:-}" ] || hostname "$HOST_NAME"
[ -z "${HOST_HIDE:-}" ] || mount -t tmpfs tmpfs "$HOST_HIDE"
mount --bind /dev/pts dev/pts
mount --rbind dev /dev
exec libvirtd -f "$0/libvirtd.conf" --pid-file "$0/libvirtd.pid"
`

func newLibvirtHost(t *testing.T, under string, namespaces ...string) *libvirtHost {
	t.Helper()
	return preparedHost(t, under, func(*libvirtHost) {}, namespaces...)
}

// preparedHost is one to which something is done before its libvirtd starts.
func preparedHost(t *testing.T, under string, prepare func(*libvirtHost), namespaces ...string) *libvirtHost {
	t.Helper()
	h := &libvirtHost{t: t, dir: filepath.Join(under, "hv"), namespaces: namespaces}
	h.Socket = filepath.Join(h.dir, "sock", "libvirt-sock")
	h.Key, h.KnownHosts = filepath.Join(h.dir, "id"), filepath.Join(h.dir, "known_hosts")
	for _, made := range []string{"sock", "pools"} {
		if err := os.MkdirAll(filepath.Join(h.dir, made), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	h.write("libvirtd.conf", fmt.Sprintf("unix_sock_dir = %q\nauth_unix_ro = \"none\"\nauth_unix_rw = \"none\"\nlog_outputs = \"2:file:%s/libvirtd.log\"\n",
		filepath.Join(h.dir, "sock"), h.dir))
	h.mountPool("small", 100) // No room for a machine.
	prepare(h)
	h.start()
	h.startSSH()
	return h
}

// mountPool gives a pool to be a file system of its own, of so many MiB, which
// takes no memory. It must be there before libvirtd is, to be seen by it.
func (h *libvirtHost) mountPool(name string, mib int) {
	h.t.Helper()
	dir := filepath.Join(h.dir, "pools", name)
	if err := os.Mkdir(dir, 0o755); err != nil {
		h.t.Fatal(err)
	}
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%dm", mib)); err != nil {
		h.t.Fatal(err)
	}
}

// unmount takes off what mountPool has mounted on every host, for a test whose
// mounts nothing else ends.
func (h *libvirtHost) unmount() {
	_ = syscall.Unmount(filepath.Join(h.dir, "pools", "small"), syscall.MNT_DETACH)
}

func (h *libvirtHost) write(name, text string) {
	h.t.Helper()
	if err := os.WriteFile(filepath.Join(h.dir, name), []byte(text), 0o600); err != nil {
		h.t.Fatal(err)
	}
}

// must runs a program and gives what it printed.
func (h *libvirtHost) must(name string, args ...string) string {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = h.dir
	out, err := cmd.CombinedOutput()
	if err != nil {
		h.t.Fatalf("%s %q: %v\n%s", name, args, err, out)
	}
	return string(out)
}

func (h *libvirtHost) virsh(args ...string) {
	h.t.Helper()
	h.must("virsh", append([]string{"-q", "-c", "qemu:///system?socket=" + h.Socket}, args...)...)
}

// start starts libvirtd and waits until it answers.
func (h *libvirtHost) start() {
	h.t.Helper()
	args := append([]string{"--mount", "--propagation", "private"}, h.namespaces...)
	cmd := exec.Command("unshare", append(args, "sh", "-c", hostScript, h.dir, h.after)...)
	cmd.Dir = h.dir
	cmd.Env = append(os.Environ(), h.env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		h.t.Fatal(err)
	}
	h.libvirtd = cmd
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	err := cluster.Until(ctx, "libvirtd answers", func(ctx context.Context) error {
		return exec.CommandContext(ctx, "virsh", "-c", "qemu:///system?socket="+h.Socket, "version").Run()
	})
	if err != nil {
		log, _ := os.ReadFile(filepath.Join(h.dir, "libvirtd.log"))
		h.t.Fatalf("%v\n%s", err, log)
	}
}

// signal sends libvirtd a signal.
func (h *libvirtHost) signal(signal syscall.Signal) {
	h.t.Helper()
	if err := h.libvirtd.Process.Signal(signal); err != nil {
		h.t.Fatal(err)
	}
}

// kill ends libvirtd and waits for it.
func (h *libvirtHost) kill() {
	h.t.Helper()
	h.signal(syscall.SIGKILL)
	_ = h.libvirtd.Wait()
}

// pool defines a storage pool over a directory of its own.
func (h *libvirtHost) pool(name string) (dir string) {
	h.t.Helper()
	dir = filepath.Join(h.dir, "pools", name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		h.t.Fatal(err)
	}
	h.virsh("pool-define-as", name, "dir", "--target", dir)
	return dir
}

// startSSH starts an SSH server on a port that it picks, with keys of its own.
func (h *libvirtHost) startSSH() {
	h.t.Helper()
	for _, key := range []string{"hostkey", "id", "stranger"} {
		h.must("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key)
	}
	picked, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		h.t.Fatal(err)
	}
	h.SSH = picked.Addr().String()
	_, port, _ := net.SplitHostPort(h.SSH)
	_ = picked.Close()
	h.must("cp", "id.pub", "authorized_keys")
	known := func(file, key string) {
		text, err := os.ReadFile(filepath.Join(h.dir, key))
		if err != nil {
			h.t.Fatal(err)
		}
		fields := strings.Fields(string(text))
		h.write(file, fmt.Sprintf("[127.0.0.1]:%s %s %s\n", port, fields[0], fields[1]))
	}
	known("known_hosts", "hostkey.pub")
	known("known_hosts_of_another", "stranger.pub")
	h.write("sshd_config", fmt.Sprintf(`ListenAddress 127.0.0.1
Port %[1]s
HostKey %[2]s/hostkey
PidFile %[2]s/sshd.pid
AuthorizedKeysFile %[2]s/authorized_keys
StrictModes no
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
AllowStreamLocalForwarding yes
`, port, h.dir))
	if err := os.MkdirAll("/run/sshd", 0o755); err != nil {
		h.t.Fatal(err)
	}
	// A copy: sshd leaves its working directory, so that only its program tells
	// whose it is.
	h.must("cp", "/usr/sbin/sshd", "sshd")
	cmd := exec.Command(filepath.Join(h.dir, "sshd"), "-D", "-f", filepath.Join(h.dir, "sshd_config"), "-E", filepath.Join(h.dir, "sshd.log"))
	cmd.Dir = h.dir
	if err := cmd.Start(); err != nil {
		h.t.Fatal(err)
	}
}

// freePort is one that nothing listens on.
func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	return l.Addr().String()
}

// deafSocket accepts connections and never answers, as a hung daemon.
func deafSocket(t *testing.T, path string) {
	t.Helper()
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() { // Ends with the listener.
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() { _, _ = io.Copy(io.Discard, conn); _ = conn.Close() }()
		}
	}()
}

// brokenHosts are host blocks of a kvm provider, each broken in its own way, and
// the reason that each must have.
func (h *libvirtHost) brokenHosts(t *testing.T) (blocks string, reasons map[string]string) {
	t.Helper()
	var text strings.Builder
	reasons = make(map[string]string)
	add := func(name, reason string, lines ...string) {
		reasons[name] = reason
		fmt.Fprintf(&text, "host %q {\n%s\n}\n", name, strings.Join(lines, "\n"))
	}
	local := fmt.Sprintf("address = %q", "unix://"+h.Socket)
	key, known := fmt.Sprintf("key_file = %q", h.Key), fmt.Sprintf("known_hosts_file = %q", h.KnownHosts)
	ssh := fmt.Sprintf("address = %q\nsocket = %q", "ssh://root@"+h.SSH, h.Socket)
	file := func(name string) string { return filepath.Join(h.dir, name) }
	for _, pool := range []string{"default", "stopped", "small", "other", "slow", "far"} {
		h.pool(pool)
		if pool != "stopped" {
			h.virsh("pool-start", pool)
		}
	}
	deaf := file("sock/deaf")
	deafSocket(t, deaf)

	add("good", "Reachable", local)
	add("far", "Reachable", ssh, key, known, `pool = "far"`)
	add("no-pool", "PoolNotFound", local, `pool = "none"`)
	add("stopped-pool", "PoolNotActive", local, `pool = "stopped"`)
	add("full-pool", "PoolNearlyFull", local, `pool = "small"`)
	add("no-network", "NetworkNotFound", local, `pool = "other"`, `network = "none"`)
	add("no-kvm", "VirtualizationUnavailable", local, `pool = "slow"`, `virt_type = "kvm"`)
	add("no-socket", "LibvirtConnectFailed", fmt.Sprintf("address = %q", "unix://"+file("sock/none")))
	add("deaf", "Timeout", fmt.Sprintf("address = %q", "unix://"+deaf))
	add("no-key", "SSHMaterialUnavailable", ssh, known, fmt.Sprintf("key_file = %q", file("none")), `pool = "a"`)
	add("wrong-key", "Unauthorized", ssh, known, fmt.Sprintf("key_file = %q", file("stranger")), `pool = "b"`)
	add("changed-host-key", "SSHHandshakeFailed", ssh, key, fmt.Sprintf("known_hosts_file = %q", file("known_hosts_of_another")), `pool = "c"`)
	add("no-far-socket", "LibvirtConnectFailed", key, known,
		fmt.Sprintf("address = %q\nsocket = %q", "ssh://root@"+h.SSH, file("sock/none")), `pool = "d"`)
	add("closed-port", "Unreachable", key, known, fmt.Sprintf("address = %q", "ssh://root@"+freePort(t)), `pool = "e"`)
	return text.String(), reasons
}

// hypervisor is a host with the network "default", and no pool yet.
func hypervisor(t *testing.T) *libvirtHost {
	t.Helper()
	h := bareHypervisor(t, func(*libvirtHost) {})
	h.network(`<network><name>default</name><bridge name="egbr0"/></network>`)
	return h
}

// network defines and starts a network.
func (h *libvirtHost) network(document string) {
	h.t.Helper()
	h.write("network.xml", document)
	h.virsh("net-define", filepath.Join(h.dir, "network.xml"))
	h.virsh("net-start", "default")
}

// bareHypervisor is a host without pools and networks.
func bareHypervisor(t *testing.T, prepare func(*libvirtHost), namespaces ...string) *libvirtHost {
	t.Helper()
	under, err := os.MkdirTemp("", "egress-e2e-hosts-")
	if err != nil {
		t.Fatal(err)
	}
	ending, err := guard.Start(under, "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := ending.Close(); err != nil {
			t.Error(err)
		}
	})
	return preparedHost(t, under, prepare, append(namespaces, "--net")...)
}

// TestEachBrokenHypervisorHasItsReason on the node and in egress check, for
// real: a hypervisor is checked with everything that can be wrong with it.
func TestEachBrokenHypervisorHasItsReason(t *testing.T) {
	h := hypervisor(t)
	blocks, reasons := h.brokenHosts(t)
	f := own(t, cluster.Config{PluginConfig: fmt.Sprintf(`
fingerprint {
  interval = "500ms"
  timeout  = "2s"
}
provider "hv" {
  type = "kvm"
  %s
}`, blocks)})

	want := map[string]string{
		"hv.type": "kvm", "hv.ready": "true", "hv.targets": strconv.Itoa(len(reasons)), "hv.targets_ready": "2",
		"hv.good.pool_state": "running", "hv.good.virt_type": "qemu", "hv.stopped-pool.pool_state": "inactive",
		"hv.deaf.libvirt_version": "",
	}
	for host, reason := range reasons {
		want["hv."+host+".reason"] = reason
		want["hv."+host+".ready"] = strconv.FormatBool(reason == "Reachable")
	}
	f.attributes(f.Nomad.Node, want)
	node, err := f.Nomad.Node(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	f.nodeStatus()
	for _, fact := range []string{"libvirt_version", "hypervisor_version", "hostname", "pool_capacity_gib", "pool_available_gib",
		"memory_total_mib", "memory_available_mib"} {
		if node.Attributes["driver.egress.hv.good."+fact] == "" {
			t.Errorf("no %s", fact)
		}
	}
	out, code := f.egress("check", filepath.Join(f.Dir, "nomad.hcl"), "--provider", "hv", "--timeout", "5s")
	if code != 1 {
		t.Errorf("check: exit code %d, want 1", code)
	}
	for host, reason := range reasons {
		if reason != "Reachable" {
			says(t, out, "hv/"+host+": "+reason+": ")
		}
	}
	h.faultsThatComeAndGo(f)
}

// faultsThatComeAndGo breaks a host that works and repairs it, without a
// restart of anything of ours.
func (h *libvirtHost) faultsThatComeAndGo(f *fixture) {
	h.t.Helper()
	good := func(reason string) {
		h.t.Helper()
		f.attributes(f.Nomad.Node, map[string]string{
			"hv.good.reason": reason, "hv.good.ready": strconv.FormatBool(reason == "Reachable"),
		})
	}
	for _, fault := range []struct {
		reason         string
		break_, repair func()
	}{
		{"PoolNotActive", func() { h.virsh("pool-destroy", "default") }, func() { h.virsh("pool-start", "default") }},
		{"NetworkNotFound", func() { h.virsh("net-destroy", "default") }, func() { h.virsh("net-start", "default") }},
		{"Timeout", func() { h.signal(syscall.SIGSTOP) }, func() { h.signal(syscall.SIGCONT) }},
		{"LibvirtConnectFailed", h.kill, func() { h.start(); h.virsh("net-start", "default") }},
	} {
		fault.break_()
		good(fault.reason)
		f.nodeStatus()
		f.egress("check", filepath.Join(f.Dir, "nomad.hcl"), "--provider", "hv", "--timeout", "5s")
		fault.repair()
		good("Reachable")
	}
}
