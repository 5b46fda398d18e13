package kubernetes_test

import (
	"context"
	"net/http"
	"os"
	"path"
	"sync/atomic"
	"testing"

	"github.com/hashicorp/go-hclog"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/egress-proxies/egress/e2e/cluster"
	"github.com/egress-proxies/egress/e2e/guard"
	"github.com/egress-proxies/egress/e2e/kubernetes"
	"github.com/egress-proxies/egress/provider"
	"github.com/egress-proxies/egress/provider/kube"
	"github.com/egress-proxies/egress/provider/providertest"
)

func TestMain(m *testing.M) {
	guard.Main()
	os.Exit(m.Run())
}

const namespace = "proxies"

// world is a cluster with a namespace for proxies.
type world struct {
	*kubernetes.Cluster
	node *kubernetes.Node
}

func newWorld(t *testing.T) *world {
	t.Helper()
	program, err := cluster.Server("k8s", "EGRESS_K8S_BIN")
	if err != nil {
		t.Fatal(err)
	}
	c, err := kubernetes.Start(t.Context(), kubernetes.Config{Program: program})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := c.Namespace(t.Context(), namespace, "../../docs/kubernetes-role.yaml"); err != nil {
		t.Fatal(err)
	}
	node, err := c.StartNode(t.Context(), kubernetes.NodeConfig{Bind: true, Images: map[string]kubernetes.Image{
		"local/sleep:1": kubernetes.Program("/usr/bin/sleep"),
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := node.Close(); err != nil {
			t.Error(err)
		}
	})
	return &world{Cluster: c, node: node}
}

// provider is the plugin, started anew.
func (w *world) provider(t *testing.T, cluster string, options map[string]any) provider.Provider {
	t.Helper()
	all := map[string]any{"namespace": namespace, "default_image": "local/sleep:1"}
	for key, value := range options {
		all[key] = value
	}
	if all["kubeconfig"] == nil {
		file, err := w.Kubeconfig(kubernetes.EgressUser, "default")
		if err != nil {
			t.Fatal(err)
		}
		all["kubeconfig"] = file
	}
	p, err := kube.New(provider.Config{Name: "k", Type: kube.Type, Options: all},
		provider.Env{Cluster: cluster, Node: "node", StateDir: t.TempDir(), Logger: hclog.NewNullLogger()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.(*kube.Provider).Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

// behind is a provider whose requests a fault meets.
func (w *world) behind(t *testing.T, fault kubernetes.Fault) provider.Provider {
	t.Helper()
	way, err := w.Faulty(kubernetes.EgressUser, fault)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := way.Close(); err != nil {
			t.Error(err)
		}
	})
	return w.provider(t, "contract", map[string]any{"kubeconfig": way.Kubeconfig})
}

// count is the pods and the Secrets of a name.
func (w *world) count(t *testing.T, name string) (n int) {
	ctx, core := context.WithoutCancel(t.Context()), w.API.CoreV1()
	_, podErr := core.Pods(namespace).Get(ctx, name, metav1.GetOptions{})
	_, secretErr := core.Secrets(namespace).Get(ctx, name, metav1.GetOptions{})
	for _, err := range []error{podErr, secretErr} {
		if err == nil {
			n++
		} else if !apierrors.IsNotFound(err) {
			t.Fatal(err)
		}
	}
	return n
}

// unreachable is a kubeconfig whose server has gone.
func (w *world) unreachable(t *testing.T) string {
	t.Helper()
	way, err := w.Faulty(kubernetes.EgressUser, nil)
	if err == nil {
		err = way.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	return way.Kubeconfig
}

// cutOff makes a pod as a plugin leaves it that is killed after a request.
func (w *world) cutOff(t *testing.T, spec provider.Spec, resource string) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var dead atomic.Bool
	p := w.behind(t, func(r *http.Request, answer *http.Response) int {
		if isPost(r, resource) && answer != nil {
			dead.Store(true)
			cancel()
		}
		if dead.Load() { // nor can it clean up
			return http.StatusInternalServerError
		}
		return kubernetes.Pass
	})
	if _, err := p.Create(ctx, spec); err == nil {
		t.Fatal("the create was not cut off")
	}
}

func isPost(r *http.Request, resource string) bool {
	return r.Method == http.MethodPost && r.URL.Path == path.Join("/api/v1/namespaces", namespace, resource)
}

func TestContract(t *testing.T) {
	w := newWorld(t)
	partial := func(name, resource string) providertest.Partial {
		return providertest.Partial{Name: name, Make: func(t *testing.T, spec provider.Spec) { w.cutOff(t, spec, resource) }}
	}
	fault := func(name string, class error, options map[string]any) providertest.Fault {
		return providertest.Fault{Name: name, Class: class, Provider: func(t *testing.T) provider.Provider {
			return w.provider(t, "contract", options)
		}}
	}
	met := func(name string, fault kubernetes.Fault) providertest.Fault {
		return providertest.Fault{Name: name, Class: provider.ErrTransient, Provider: func(t *testing.T) provider.Provider {
			return w.behind(t, fault)
		}}
	}
	as := func(user kubernetes.User) map[string]any {
		file, err := w.Kubeconfig(user, "default")
		if err != nil {
			t.Fatal(err)
		}
		return map[string]any{"kubeconfig": file}
	}
	providertest.Run(t, providertest.Harness{
		New:  func(t *testing.T, cluster string) provider.Provider { return w.provider(t, cluster, nil) },
		Spec: w.spec,
		End: func(t *testing.T, instance provider.Instance) {
			if err := w.node.End(namespace, instance.Name, kubernetes.End{Reason: "OOMKilled", Container: true}); err != nil {
				t.Fatal(err)
			}
		},
		Count:    w.count,
		Partials: []providertest.Partial{partial("PodWithoutSecret", "pods"), partial("PodAndSecret", "secrets")},
		Faults: []providertest.Fault{
			fault("NamespaceMissing", provider.ErrPermanent, map[string]any{"namespace": "nowhere"}),
			fault("Unauthorized", provider.ErrPermanent, as(kubernetes.Nobody)),
			fault("Forbidden", provider.ErrPermanent, as(kubernetes.Stranger)),
			fault("PodSecurity", provider.ErrPermanent, map[string]any{"host_network": true}),
			fault("NoSuchImage", provider.ErrPermanent, map[string]any{"default_image": "local/none:1"}),
			fault("Unreachable", provider.ErrTransient, map[string]any{"kubeconfig": w.unreachable(t)}),
			met("SecretNotCreated", func(r *http.Request, answer *http.Response) int {
				if answer == nil && isPost(r, "secrets") {
					return http.StatusServiceUnavailable
				}
				return kubernetes.Pass
			}),
			met("AnswerLost", func(r *http.Request, answer *http.Response) int {
				if answer != nil && isPost(r, "pods") {
					return kubernetes.Cut
				}
				return kubernetes.Pass
			}),
			met("ServerFails", func(*http.Request, *http.Response) int { return http.StatusInternalServerError }),
			met("Throttled", func(*http.Request, *http.Response) int { return http.StatusTooManyRequests }),
		},
	})
}

// spec is a pod whose process does nothing until its end.
func (w *world) spec(*testing.T) provider.Spec {
	return provider.Spec{
		Port: 3128, Auth: provider.Credentials{Username: "u", Password: "p"}, Command: "sleep", Args: []string{"infinity"},
		Resources: provider.Resources{MemoryMiB: 64},
	}
}
