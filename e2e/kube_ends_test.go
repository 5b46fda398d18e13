package e2e_test

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	nomad "github.com/hashicorp/nomad/api"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/egress-proxies/egress/e2e/kubernetes"
)

// started runs one pod as the job id, and gives its allocation once it runs.
func (p *pods) started(id string) *nomad.AllocationListStub {
	p.t.Helper()
	p.submit(p.job(id, map[string]any{"service": []map[string]any{{"name": id}}}))
	return p.running(id, 1)[0]
}

// TestPodsThatEndSayWhy where a user looks, whoever ended them; and when it is
// the API server that ends, the tasks go on.
func TestPodsThatEndSayWhy(t *testing.T) {
	p := newPods(t, nil, nil)
	stays := p.started(p.name)
	p.passing(1)
	for _, ended := range []struct {
		name, says string
		how        func(pod string) error
	}{
		{"deleted", "deleted", func(pod string) error {
			return p.kube.API.CoreV1().Pods(proxies).Delete(t.Context(), pod, metav1.DeleteOptions{})
		}},
		{"memory", "out of memory", func(pod string) error {
			return p.node.End(proxies, pod, kubernetes.End{Reason: "OOMKilled", Container: true})
		}},
		{"evicted", "evicted: The node was low on resource: memory", func(pod string) error {
			return p.node.End(proxies, pod, kubernetes.End{Reason: "Evicted", Message: "The node was low on resource: memory."})
		}},
	} {
		id := p.name + "-" + ended.name
		alloc := p.started(id)
		if err := ended.how(p.instance(alloc.ID)); err != nil {
			t.Fatalf("%s: %v", ended.name, err)
		}
		p.event(id, "Terminated", ended.says)
		p.stop(id)
	}

	if err := p.kube.StopAPI(); err != nil {
		t.Fatal(err)
	}
	p.worksURL(proxyURL(p.passing(1)[0]).String())
	if err := p.kube.StartAPI(t.Context()); err != nil {
		t.Fatal(err)
	}
	if now := p.running(p.name, 1)[0]; now.ID != stays.ID {
		t.Errorf("allocation %s runs after the API server came back, before it was %s", now.ID, stays.ID)
	}
	p.attributes(p.Nomad.Node, map[string]string{"pods.ready": "true"})
	// It is still watched.
	if err := p.node.End(proxies, p.instance(stays.ID), kubernetes.End{Reason: "OOMKilled", Container: true}); err != nil {
		t.Fatal(err)
	}
	p.event(p.name, "Terminated", "out of memory")
	p.stop(p.name)
	p.empty()
}

// images is a node to which images come late or never.
type images struct {
	held    chan struct{} // closed when local/held:1 may come
	arrived chan string   // images that somebody waits for
}

const (
	heldImage    = "local/held:1"
	refusedImage = "local/refused:1"
	missingImage = "local/missing:1"
)

func (i *images) pull(ctx context.Context, image string) error {
	switch image {
	case refusedImage:
		return fmt.Errorf("failed to pull and unpack image %q: dial tcp 198.51.100.7:443: connect: connection refused", image)
	case heldImage:
		select {
		case i.arrived <- image:
		default:
		}
		select {
		case <-i.held:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// TestPodsThatDoNotStartSayWhy in the task's events; a plugin that is killed
// meanwhile makes no second pod; and `egress check` names what is wrong with
// the way to the API server.
func TestPodsThatDoNotStartSayWhy(t *testing.T) {
	node := &images{held: make(chan struct{}), arrived: make(chan string, 1)}
	broken := map[string]kubernetes.User{"unknown": kubernetes.Nobody, "forbidden": kubernetes.Stranger}
	p := newPods(t, func(k *kubernetes.Cluster) string {
		var blocks strings.Builder
		for name, user := range broken {
			blocks.WriteString((&pods{kube: k}).block(t, name, user))
		}
		gone, err := k.Faulty(kubernetes.EgressUser, nil)
		if err == nil {
			err = gone.Close()
		}
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&blocks, "provider \"gone\" {\n  type = \"kube\"\n  kubeconfig = %q\n  namespace = %q\n}\n", gone.Kubeconfig, proxies)
		return blocks.String()
	}, node.pull)
	p.attributes(p.Nomad.Node, map[string]string{
		"pods.proxies.reason": "Reachable", "unknown.proxies.reason": "Unauthorized",
		"forbidden.proxies.reason": "Forbidden", "gone.proxies.reason": "Unreachable",
	})
	out, code := p.egress("check", filepath.Join(p.Dir, "nomad.hcl"))
	if code != 1 {
		t.Errorf("check: exit code %d, want 1", code)
	}
	says(t, out, "unknown/proxies: Unauthorized: ", "forbidden/proxies: Forbidden: ", "create pods", "gone/proxies: Unreachable: ")
	out, code = p.egress("check", filepath.Join(p.Dir, "nomad.hcl"), "--provider", "pods")
	if code != 0 {
		t.Errorf("check of the provider that works: exit code %d\n%s", code, out)
	}

	for name, wrong := range map[string]struct {
		key, value string
		says       []string
	}{
		"zone":    {"zone", "nowhere", []string{"unschedulable", "node affinity/selector"}},
		"refused": {"image", refusedImage, []string{refusedImage, "connection refused"}},
		"missing": {"image", missingImage, []string{missingImage, "not found"}},
	} {
		id := p.name + "-" + name
		p.submit(p.job(id, map[string]any{wrong.key: wrong.value, "start_timeout": "15s"}))
		p.event(id, wrong.says...)
	}

	job := p.job(p.name, map[string]any{"image": heldImage, "service": []map[string]any{{"name": p.name}}})
	job.TaskGroups[0].RestartPolicy.Attempts = ptr(3)
	p.submit(job)
	select {
	case <-node.arrived:
	case <-t.Context().Done():
		t.Fatal("the test ends before the pod waits for its image")
	}
	p.killPlugin()
	close(node.held)
	p.passing(1)
	alloc := p.running(p.name, 1)[0]
	pod := p.instance(alloc.ID)
	p.until("there is one pod of the task", func(ctx context.Context) error {
		list, err := p.kube.API.CoreV1().Pods(proxies).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		var names []string
		for _, one := range list.Items {
			if strings.Contains(one.Name, alloc.ID[:8]) {
				names = append(names, one.Name)
			}
		}
		if len(names) != 1 || names[0] != pod {
			return fmt.Errorf("pods %q, want %s", names, pod)
		}
		return nil
	})
}
