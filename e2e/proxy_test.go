package e2e_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"time"

	consul "github.com/hashicorp/consul/api"

	"github.com/egress-proxies/egress/e2e/guard"
	"github.com/egress-proxies/egress/e2e/origin"
)

// proxyURL is how clients reach a registered proxy that asks for nothing.
func proxyURL(entry *consul.ServiceEntry) *url.URL {
	return &url.URL{
		Scheme: "http",
		Host:   net.JoinHostPort(entry.Service.Address, strconv.Itoa(entry.Service.Port)),
	}
}

// fetch gets a page of the origin through a proxy, as a crawler would.
func (f *fixture) fetch(ctx context.Context, proxy *url.URL, page string) (origin.Page, error) {
	authority, err := os.ReadFile(f.Origin.CAFile)
	if err != nil {
		return origin.Page{}, err
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(authority)
	transport := &http.Transport{
		Proxy:           http.ProxyURL(proxy),
		TLSClientConfig: &tls.Config{RootCAs: pool},
	}
	defer transport.CloseIdleConnections()
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, page, nil)
	if err != nil {
		return origin.Page{}, err
	}
	response, err := transport.RoundTrip(request)
	if err != nil {
		return origin.Page{}, err
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusOK {
		return origin.Page{}, fmt.Errorf("GET %s through %s: %s", page, proxy.Redacted(), response.Status)
	}
	var seen origin.Page
	return seen, json.NewDecoder(response.Body).Decode(&seen)
}

// works fails the test unless pages over http and https come through the proxy.
func (f *fixture) works(proxy *url.URL) {
	f.t.Helper()
	for _, root := range []string{f.Origin.HTTP, f.Origin.HTTPS} {
		page, err := f.fetch(f.t.Context(), proxy, root+"/")
		if err != nil {
			f.t.Errorf("fetch %s: %v", root, err)
		} else if page.Client == "" {
			f.t.Errorf("fetch %s: not the origin's page", root)
		}
	}
}

// listener is the process that listens on a port: the proxy itself, whatever
// its provider calls it.
func (f *fixture) listener(port int) guard.Process {
	f.t.Helper()
	processes, err := f.listeners(port)
	if err != nil || len(processes) != 1 {
		f.t.Fatalf("processes that listen on port %d: %v, %v; want one", port, processes, err)
	}
	return processes[0]
}

// listeners are the processes of the cluster that listen on a port.
func (f *fixture) listeners(port int) ([]guard.Process, error) {
	return guard.Listeners(f.Dir, port)
}

// errNotYet is a condition that doesn't hold, told with what there is.
func errNotYet(n int, err error) error {
	return fmt.Errorf("%d so far, error: %v", n, err)
}

// endpointHCL is the address of a registered proxy as a variable's value.
func endpointHCL(entry *consul.ServiceEntry) string {
	return fmt.Sprintf("{ host = %q, port = %d }", entry.Service.Address, entry.Service.Port)
}
