package e2e_test

import (
	"context"
	"fmt"
	"net"
	"strings"
	"testing"

	nomad "github.com/hashicorp/nomad/api"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/egress-proxies/egress/e2e/cluster"
	"github.com/egress-proxies/egress/e2e/kubernetes"
	"github.com/egress-proxies/egress/lease/api"
)

// roleFile has the rights that the documentation asks for; the provider has no
// others here.
const roleFile = "../docs/kubernetes-role.yaml"

// proxies is the namespace of the pods; its pod security level is "restricted".
const proxies = "proxies"

// squidImage is the provider's default.
const squidImage = "docker.io/ubuntu/squid:latest"

// pods is a Nomad cluster whose provider "pods" uses a Kubernetes cluster.
type pods struct {
	*fixture
	kube *kubernetes.Cluster
	node *kubernetes.Node
}

// newPods starts both; more is HCL that is appended to the plugin's
// configuration, pull what a node says of an image.
func newPods(t *testing.T, more func(*kubernetes.Cluster) string, pull func(context.Context, string) error) *pods {
	t.Helper()
	t.Parallel()
	program, err := cluster.Server("k8s", "EGRESS_K8S_BIN")
	if err != nil {
		t.Fatal(err)
	}
	k, err := kubernetes.Start(t.Context(), kubernetes.Config{Program: program, Scheduler: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(k.Logs())
		}
		if err := k.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := k.Namespace(t.Context(), proxies, roleFile); err != nil {
		t.Fatal(err)
	}
	// Ends after the agents, before the cluster.
	node, err := k.StartNode(t.Context(), kubernetes.NodeConfig{Pull: pull, Images: map[string]kubernetes.Image{
		squidImage: kubernetes.Squid("/usr/sbin/squid"), heldImage: kubernetes.Squid("/usr/sbin/squid"),
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := node.Close(); err != nil {
			t.Error(err)
		}
	})
	p := &pods{kube: k, node: node}
	config := fmt.Sprintf("credentials_file = %q\n", credentialsFile()) + p.block(t, "pods", kubernetes.EgressUser,
		`allow_clients = ["127.0.0.0/8"]`, `allow_targets = ["127.0.0.0/8"]`)
	if more != nil {
		config += more(k)
	}
	c, err := startCluster(cluster.Config{PluginConfig: config})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	p.fixture = newFixture(t, c)
	return p
}

// block is a provider that the user's kubeconfig is for.
func (p *pods) block(t *testing.T, name string, user kubernetes.User, lines ...string) string {
	t.Helper()
	kubeconfig, err := p.kube.Kubeconfig(user, "default")
	if err != nil {
		t.Fatal(err)
	}
	lines = append(lines, `type = "kube"`, fmt.Sprintf("kubeconfig = %q", kubeconfig), fmt.Sprintf("namespace = %q", proxies))
	return fmt.Sprintf("provider %q {\n%s\n}\n", name, strings.Join(lines, "\n"))
}

// pod is the pod of an allocation's task.
func (p *pods) pod(alloc string) *corev1.Pod {
	p.t.Helper()
	pod, err := p.kube.API.CoreV1().Pods(proxies).Get(p.t.Context(), p.instance(alloc), metav1.GetOptions{})
	if err != nil {
		p.t.Fatal(err)
	}
	return pod
}

// left are the pods and Secrets that exist.
func (p *pods) left(ctx context.Context) (names []string, err error) {
	core := p.kube.API.CoreV1()
	pods, err := core.Pods(proxies).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	for _, pod := range pods.Items {
		names = append(names, "pod "+pod.Name)
	}
	secrets, err := core.Secrets(proxies).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	for _, secret := range secrets.Items {
		names = append(names, "secret "+secret.Name)
	}
	return names, nil
}

// empty waits until no pod and no Secret is left.
func (p *pods) empty() {
	p.t.Helper()
	p.until("the namespace is empty", func(ctx context.Context) error {
		left, err := p.left(ctx)
		if err == nil && len(left) > 0 {
			err = fmt.Errorf("left: %q", left)
		}
		return err
	})
}

// job is a job of one pod that is never restarted, so that what is wrong with it
// stays visible.
func (p *pods) job(id string, config map[string]any) *nomad.Job {
	all := map[string]any{"provider": "pods", "port": 3128}
	for key, value := range config {
		all[key] = value
	}
	return p.proxyJob(id, all)
}

// TestPodsFromJobToLease is the way of a fleet of pods: launched, probed with
// their password, registered, leased, fetched through, their log followed; and
// back to nothing.
func TestPodsFromJobToLease(t *testing.T) {
	p := newPods(t, nil, nil)
	p.attributes(p.Nomad.Node, map[string]string{"pods.type": "kube", "pods.ready": "true", "pods.proxies.reason": "Reachable"})
	lease := p.leaseService(map[string]string{"args": `["--credentials-file", "` + credentialsFile() + `"]`})
	p.load("kube", p.name, map[string]string{"provider": "pods", "count": "2", "max_parallel": "2", "auth": "crawl", "memory": "64"})
	entries := p.passing(2)
	for _, entry := range entries {
		if entry.Service.Meta["exit_ip"] != entry.Service.Address || net.ParseIP(entry.Service.Address) == nil {
			t.Errorf("registered %s with exit %q; want the pod's own address", entry.Service.Address, entry.Service.Meta["exit_ip"])
		}
		if _, err := p.fetch(t.Context(), proxyURL(entry), p.Origin.HTTP+"/"); err == nil {
			t.Error("the pod serves a client without its password")
		}
	}
	seen := map[string]bool{}
	for range entries {
		granted := lease.acquire(api.Acquire{Target: p.Origin.HTTP, TTL: api.Duration(patience)})
		if seen[granted.Proxy] {
			t.Errorf("proxy %s leased twice", granted.Proxy)
		}
		seen[granted.Proxy] = true
		p.worksURL(granted.URL)
		t.Cleanup(func() { lease.release(granted) })
	}
	for _, alloc := range p.running(p.name, len(entries)) {
		p.until("the access log is in the logs", func(ctx context.Context) error {
			text, err := p.logs(ctx, alloc.ID)
			if err == nil && !strings.Contains(text, "TCP_TUNNEL/200") {
				err = fmt.Errorf("logs:\n%s", text)
			}
			return err
		})
	}
	p.stop(p.name)
	p.empty()
}
