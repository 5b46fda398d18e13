package registry

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/egress-proxies/egress/driver/probe/reload"
)

// maxConnections keeps the heartbeats of a node with hundreds of proxies well
// under the agent's own limit of 200 connections for a client.
const maxConnections = 8

// transport is an http.RoundTripper that follows changes of the CA file.
type transport struct {
	roots *reload.File[*x509.CertPool]

	// mu guards current and trusted, the roots that it was made with.
	mu      sync.Mutex
	current *http.Transport
	trusted *x509.CertPool
}

func newTransport(caFile string) *transport {
	t := new(transport)
	if caFile != "" {
		t.roots = reload.Roots(caFile)
	}
	return t
}

// RoundTrip makes the request with the roots as they are now.
func (t *transport) RoundTrip(request *http.Request) (*http.Response, error) {
	current, err := t.refresh()
	if err != nil {
		return nil, fmt.Errorf("ca_file: %w", err)
	}
	return current.RoundTrip(request)
}

func (t *transport) refresh() (*http.Transport, error) {
	var trusted *x509.CertPool
	if t.roots != nil {
		pool, ok, err := t.roots.Get()
		if !ok {
			return nil, err
		}
		trusted = pool
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.current == nil || t.trusted != trusted {
		if t.current != nil {
			t.current.CloseIdleConnections()
		}
		t.trusted = trusted
		t.current = &http.Transport{
			TLSClientConfig:     &tls.Config{RootCAs: trusted, MinVersion: tls.VersionTLS12},
			MaxConnsPerHost:     maxConnections,
			MaxIdleConnsPerHost: maxConnections,
			IdleConnTimeout:     time.Minute,
		}
	}
	return t.current, nil
}

// CloseIdleConnections closes the connections that nobody uses.
func (t *transport) CloseIdleConnections() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.current != nil {
		t.current.CloseIdleConnections()
	}
}
