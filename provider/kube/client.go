package kube

import (
	"net/http"
	"os"
	"sync"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/egress-proxies/egress/provider"
)

// client connects at the first call: a plugin is started several times at boot
// only to be asked for its name.
type client struct {
	settings settings
	wrap     func(http.RoundTripper) http.RoundTripper // of tests

	mu   sync.Mutex // guards what follows; no call is made under it
	api  *kubernetes.Clientset
	rest *rest.Config
}

// get is the API. A kubeconfig that can't be read is transient: it may be
// written later. One that makes no sense is permanent.
func (c *client) get(settings settings) (*kubernetes.Clientset, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.api != nil {
		return c.api, nil
	}
	config, err := restConfig(settings)
	if err != nil {
		return nil, err
	}
	// The server has its own fairness; the default of 5 calls a second would
	// hold up a fleet that starts.
	config.QPS, config.Burst = 50, 100
	config.UserAgent = "egress"
	if c.wrap != nil {
		config.Wrap(c.wrap)
	}
	api, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, provider.Permanentf("kubeconfig %q: %w", settings.Kubeconfig, err)
	}
	c.api, c.rest = api, config
	return api, nil
}

// config is the connection's, for streams.
func (c *client) config(settings settings) (*rest.Config, error) {
	if _, err := c.get(settings); err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return rest.CopyConfig(c.rest), nil
}

func (c *client) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.api == nil {
		return
	}
	if rest, ok := c.api.CoreV1().RESTClient().(*rest.RESTClient); ok && rest.Client != nil {
		rest.Client.CloseIdleConnections()
	}
	c.api, c.rest = nil, nil
}

func restConfig(settings settings) (*rest.Config, error) {
	if settings.Kubeconfig == "" {
		config, err := rest.InClusterConfig()
		if err != nil {
			return nil, provider.Permanentf("no \"kubeconfig\" is set and this isn't a pod of the cluster: %w", err)
		}
		return config, nil
	}
	if _, err := os.Stat(settings.Kubeconfig); err != nil {
		return nil, provider.Transientf("kubeconfig: %w", err)
	}
	rules := &clientcmd.ClientConfigLoadingRules{ExplicitPath: settings.Kubeconfig}
	overrides := &clientcmd.ConfigOverrides{CurrentContext: settings.Context}
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, overrides).ClientConfig()
	if err != nil {
		return nil, provider.Permanentf("kubeconfig %q: %w", settings.Kubeconfig, err)
	}
	return config, nil
}
