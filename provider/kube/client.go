package kube

import (
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/egress-proxies/egress/provider"
)

// client connects at the first call: a plugin is started several times at boot
// only to be asked for its name. It connects again when the kubeconfig changes.
type client struct {
	settings settings
	logger   hclog.Logger
	wrap     func(http.RoundTripper) http.RoundTripper // of tests

	mu   sync.Mutex // guards what follows; no call is made under it
	api  *kubernetes.Clientset
	rest *rest.Config
	read edition
}

// edition tells one content of a file from another.
type edition struct {
	modified time.Time
	size     int64
}

// get is the API. A kubeconfig that isn't there is transient: it may be written
// later. One that makes no sense is permanent.
func (c *client) get() (*kubernetes.Clientset, error) {
	api, _, err := c.connect()
	return api, err
}

// config is the connection's, for streams.
func (c *client) config() (*rest.Config, error) {
	_, config, err := c.connect()
	if err != nil {
		return nil, err
	}
	return rest.CopyConfig(config), nil
}

func (c *client) connect() (*kubernetes.Clientset, *rest.Config, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	present, err := c.edition()
	if c.api != nil && (err != nil || present == c.read) {
		return c.api, c.rest, nil // a file that is being replaced is missing for a moment
	}
	if err != nil {
		return nil, nil, err
	}
	api, config, err := c.build()
	switch {
	case err == nil:
		c.disconnect()
		c.api, c.rest, c.read = api, config, present
	case c.api != nil: // it may be half written
		c.logger.Warn("the changed kubeconfig can't be used, going on with the one before", "error", err)
	default:
		return nil, nil, err
	}
	return c.api, c.rest, nil
}

func (c *client) build() (*kubernetes.Clientset, *rest.Config, error) {
	config, err := restConfig(c.settings)
	if err != nil {
		return nil, nil, err
	}
	// The server has its own fairness; the default of 5 calls a second would
	// hold up a fleet that starts.
	config.QPS, config.Burst = 50, 100
	config.UserAgent = "egress"
	config.WarningHandler = warnings{c.logger}
	if c.wrap != nil {
		config.Wrap(c.wrap)
	}
	api, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, nil, provider.Permanentf("kubeconfig %q: %w", c.settings.Kubeconfig, err)
	}
	return api, config, nil
}

// edition is that of the kubeconfig; the account of a pod is re-read by the
// library.
func (c *client) edition() (edition, error) {
	if c.settings.Kubeconfig == "" {
		return edition{}, nil
	}
	info, err := os.Stat(c.settings.Kubeconfig)
	if err != nil {
		return edition{}, provider.Transientf("kubeconfig: %w", err)
	}
	return edition{info.ModTime(), info.Size()}, nil
}

func (c *client) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.disconnect()
}

// disconnect ends the connections that are idle; c.mu is held.
func (c *client) disconnect() {
	if c.api == nil {
		return
	}
	if rest, ok := c.api.CoreV1().RESTClient().(*rest.RESTClient); ok && rest.Client != nil {
		utilnet.CloseIdleConnectionsFor(rest.Client.Transport)
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
	rules := &clientcmd.ClientConfigLoadingRules{ExplicitPath: settings.Kubeconfig}
	overrides := &clientcmd.ConfigOverrides{CurrentContext: settings.Context}
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, overrides).ClientConfig()
	if err != nil {
		return nil, provider.Permanentf("kubeconfig %q: %w", settings.Kubeconfig, err)
	}
	return config, nil
}

// warnings are what the API server says beside its answers.
type warnings struct{ logger hclog.Logger }

// HandleWarningHeader is called by the library for each.
func (w warnings) HandleWarningHeader(_ int, _ string, text string) {
	if text != "" {
		w.logger.Debug("the API server warns", "warning", text)
	}
}
