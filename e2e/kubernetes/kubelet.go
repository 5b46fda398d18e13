package kubernetes

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	// PodNetwork is where the pods of a real node have their addresses.
	PodNetwork = "10.244.0.0/24"
	// Gateway is the node's own address there.
	Gateway = "10.244.0.1"

	containerdSocket = "/run/containerd/containerd.sock"
)

// Kubelet is a real node: a kubelet, containerd and runc.
type Kubelet struct {
	c                   *Cluster
	cgroup              string
	containerd, kubelet part
}

// StartKubelet starts the node in the network, mount and process namespaces
// that the caller has to itself: it mounts over /run, /var/lib and /var/log, and
// ends with the namespaces. cgroup is the name of the control groups that it
// makes; who made the namespaces removes them. It returns when the node is ready.
func (c *Cluster) StartKubelet(ctx context.Context, cgroup string, images ...Archive) (*Kubelet, error) {
	k := &Kubelet{c: c, cgroup: cgroup}
	for _, step := range []func(context.Context) error{
		k.mounts, k.network, k.cgroups, k.startContainerd,
		func(ctx context.Context) error { return k.load(ctx, append(images, Pause())) },
		k.startKubelet, k.ready,
	} {
		if err := step(ctx); err != nil {
			return nil, fmt.Errorf("%w\n%s", err, k.Logs())
		}
	}
	return k, nil
}

// Logs is the end of what the parts printed.
func (k *Kubelet) Logs() string {
	var all strings.Builder
	for _, p := range []*part{&k.containerd, &k.kubelet} {
		if text, err := os.ReadFile(p.log); err == nil {
			fmt.Fprintf(&all, "--- end of %s\n%s\n", p.log, text[max(0, len(text)-8000):])
		}
	}
	return all.String()
}

// sysctls are what a kubelet sets. It sees files that say that they are set, and
// leaves the machine's alone.
var sysctls = map[string]string{
	"vm/overcommit_memory": "1", "vm/panic_on_oom": "0", "kernel/panic": "10", "kernel/panic_on_oops": "1",
	"kernel/keys/root_maxkeys": "1000000", "kernel/keys/root_maxbytes": "25000000",
}

// mounts hides what the node writes to from the machine.
func (k *Kubelet) mounts(context.Context) error {
	for _, place := range []string{"/run", "/var/lib", "/var/log"} {
		if err := syscall.Mount("tmpfs", place, "tmpfs", 0, ""); err != nil {
			return fmt.Errorf("mount %s: %w", place, err)
		}
	}
	for name, value := range sysctls {
		file := filepath.Join(k.c.Dir, "sysctl-"+filepath.Base(name))
		if err := os.WriteFile(file, []byte(value+"\n"), 0o644); err != nil {
			return err
		}
		if err := syscall.Mount(file, "/proc/sys/"+name, "", syscall.MS_BIND, ""); err != nil {
			return fmt.Errorf("mount %s: %w", name, err)
		}
	}
	return nil
}

// network makes the bridge before the first pod does, so that the node has its
// address.
func (k *Kubelet) network(ctx context.Context) error {
	for _, args := range []string{
		"link add cni0 type bridge", "addr add " + Gateway + "/24 dev cni0", "link set cni0 up",
	} {
		if out, err := exec.CommandContext(ctx, "ip", strings.Fields(args)...).CombinedOutput(); err != nil {
			return fmt.Errorf("ip %s: %w: %s", args, err, out)
		}
	}
	return k.file("cni/10-pods.conflist", fmt.Sprintf(`{
  "cniVersion": "0.4.0", "name": "pods",
  "plugins": [{
    "type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": false,
    "ipam": {"type": "host-local", "ranges": [[{"subnet": %q, "gateway": %q}]], "routes": [{"dst": "0.0.0.0/0"}]}
  }]
}`, PodNetwork, Gateway))
}

// cgroups makes the groups below which all of the node's are.
func (k *Kubelet) cgroups(context.Context) error {
	const root = "/sys/fs/cgroup"
	if _, err := os.Stat(filepath.Join(root, "cgroup.controllers")); err == nil {
		return os.MkdirAll(filepath.Join(root, k.cgroup), 0o755)
	}
	for _, controller := range []string{"cpu", "cpuacct", "cpuset", "memory", "devices", "freezer", "blkio", "pids", "systemd"} {
		if err := os.MkdirAll(filepath.Join(root, controller, k.cgroup), 0o755); err != nil {
			return err
		}
	}
	// A new group of this controller has no processors.
	for _, name := range []string{"cpuset.cpus", "cpuset.mems"} {
		value, err := os.ReadFile(filepath.Join(root, "cpuset", name))
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(root, "cpuset", k.cgroup, name), value, 0o644); err != nil {
			return err
		}
	}
	return nil
}

func (k *Kubelet) startContainerd(ctx context.Context) error {
	if err := k.file("containerd.toml", fmt.Sprintf(`version = 2
root = "/var/lib/containerd"
state = "/run/containerd"
[grpc]
  address = %q
[plugins."io.containerd.internal.v1.opt"]
  path = "/var/lib/containerd-opt"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = %q
  disable_apparmor = true
  disable_tcp_service = true
  netns_mounts_under_state_dir = true
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = %q
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        SystemdCgroup = false
`, containerdSocket, pauseImage, filepath.Join(k.c.Dir, "cni"))); err != nil {
		return err
	}
	if err := k.containerd.startProgram(k.c.Dir, "containerd", "/usr/bin/containerd", "-c", filepath.Join(k.c.Dir, "containerd.toml")); err != nil {
		return err
	}
	return k.containerd.ready(ctx, "containerd answers", func(ctx context.Context) error {
		return k.ctr(ctx, "version")
	})
}

func (k *Kubelet) ctr(ctx context.Context, args ...string) error {
	out, err := exec.CommandContext(ctx, "ctr", append([]string{"-a", containerdSocket, "-n", "k8s.io"}, args...)...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("ctr %q: %w: %s", args, err, out)
	}
	return nil
}

// load makes the images and imports them: there is no registry.
func (k *Kubelet) load(ctx context.Context, images []Archive) error {
	for i, image := range images {
		path := filepath.Join(k.c.Dir, fmt.Sprintf("image%d.tar", i))
		if err := image.write(path); err != nil {
			return err
		}
		if err := k.ctr(ctx, "images", "import", path); err != nil {
			return err
		}
	}
	return nil
}

func (k *Kubelet) startKubelet(context.Context) error {
	kubeconfig, err := k.c.Kubeconfig(NodeUser, "default")
	if err != nil {
		return err
	}
	// Its endpoint is open to this network alone.
	if err := k.file("kubelet.yaml", fmt.Sprintf(`apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
address: %q
readOnlyPort: 0
healthzPort: 0
failCgroupV1: false
failSwapOn: false
cgroupDriver: cgroupfs
cgroupRoot: "/%s"
containerRuntimeEndpoint: "unix://%s"
resolvConf: ""
makeIPTablesUtilChains: false
imageGCHighThresholdPercent: 100
localStorageCapacityIsolation: false
evictionHard: {memory.available: "0%%", nodefs.available: "0%%", imagefs.available: "0%%", nodefs.inodesFree: "0%%", imagefs.inodesFree: "0%%"}
volumePluginDir: %q
`, Gateway, k.cgroup, containerdSocket, filepath.Join(k.c.Dir, "volume-plugins"))); err != nil {
		return err
	}
	return k.kubelet.start(k.c, "kubelet", "--config", filepath.Join(k.c.Dir, "kubelet.yaml"), "--root-dir", "/var/lib/kubelet",
		"--cert-dir", "/var/lib/kubelet/pki", "--kubeconfig", kubeconfig, "--hostname-override", NodeName, "--node-ip", Gateway)
}

func (k *Kubelet) ready(ctx context.Context) error {
	return k.kubelet.ready(ctx, "the node is ready", func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		node, err := k.c.API.CoreV1().Nodes().Get(ctx, NodeName, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, condition := range node.Status.Conditions {
			if condition.Type == corev1.NodeReady && condition.Status == corev1.ConditionTrue {
				return nil
			}
		}
		return fmt.Errorf("node: %v", node.Status.Conditions)
	})
}

// file writes a file below the cluster's directory.
func (k *Kubelet) file(name, text string) error {
	path := filepath.Join(k.c.Dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, []byte(text), 0o644)
}
