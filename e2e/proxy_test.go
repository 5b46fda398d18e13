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
	"path/filepath"
	"slices"
	"strconv"
	"strings"
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
	inodes := listening(port)
	processes, err := guard.Processes(f.Dir)
	return slices.DeleteFunc(processes, func(p guard.Process) bool {
		fds, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", p.PID))
		return !slices.ContainsFunc(fds, func(fd string) bool {
			target, _ := os.Readlink(fd)
			return inodes[target]
		})
	}), err
}

// listening are the sockets that listen on a port, as /proc/<pid>/fd shows
// them.
func listening(port int) map[string]bool {
	inodes := map[string]bool{}
	for _, table := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		text, _ := os.ReadFile(table)
		for line := range strings.Lines(string(text)) {
			// sl local_address rem_address st … inode, numbers in hex; state 0A
			// is LISTEN (proc(5)).
			fields := strings.Fields(line)
			if len(fields) > 9 && fields[3] == "0A" && strings.HasSuffix(fields[1], fmt.Sprintf(":%04X", port)) {
				inodes["socket:["+fields[9]+"]"] = true
			}
		}
	}
	return inodes
}

// errNotYet is a condition that doesn't hold, told with what there is.
func errNotYet(n int, err error) error {
	return fmt.Errorf("%d so far, error: %v", n, err)
}

// endpointHCL is the address of a registered proxy as a variable's value.
func endpointHCL(entry *consul.ServiceEntry) string {
	return fmt.Sprintf("{ host = %q, port = %d }", entry.Service.Address, entry.Service.Port)
}
