package e2e_test

import (
	"bufio"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	consul "github.com/hashicorp/consul/api"

	"github.com/egress-proxies/egress/e2e/cluster"
)

// rotate gives the entry "crawl" of a credentials file another password, as an
// operator or a template would.
func rotate(t *testing.T, file, password string) {
	t.Helper()
	text := fmt.Sprintf(`{"crawl": {"username": %q, "password": %q}}`, username, password)
	if err := os.WriteFile(file+".new", []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(file+".new", file); err != nil {
		t.Fatal(err)
	}
}

// crawler is a client that holds a tunnel open.
type crawler struct {
	net.Conn
	read   *bufio.Reader
	origin string
}

// tunnel opens a tunnel to the origin through a proxy.
func (f *fixture) tunnel(entry *consul.ServiceEntry, password string) crawler {
	f.t.Helper()
	conn, err := net.Dial("tcp", net.JoinHostPort(entry.Service.Address, strconv.Itoa(entry.Service.Port)))
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { _ = conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(3 * patience))
	c := crawler{conn, bufio.NewReader(conn), strings.TrimPrefix(f.Origin.HTTP, "http://")}
	given := base64.StdEncoding.EncodeToString([]byte(username + ":" + password))
	if err := c.ask("CONNECT %[1]s HTTP/1.1\r\nHost: %[1]s\r\nProxy-Authorization: Basic %[2]s\r\n\r\n", c.origin, given); err != nil {
		f.t.Fatal("open a tunnel:", err)
	}
	return c
}

// ask makes one request that must be answered with 200.
func (c crawler) ask(format string, args ...any) error {
	if _, err := fmt.Fprintf(c, format, args...); err != nil {
		return err
	}
	request := &http.Request{Method: http.MethodGet}
	if strings.HasPrefix(format, http.MethodConnect) {
		request.Method = http.MethodConnect
	}
	response, err := http.ReadResponse(c.read, request)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusOK {
		return errors.New(response.Status)
	}
	if request.Method == http.MethodConnect {
		return nil // what follows is the tunnel
	}
	_, err = io.Copy(io.Discard, response.Body)
	return err
}

// page fetches the origin's page through the tunnel.
func (c crawler) page() error { return c.ask("GET / HTTP/1.1\r\nHost: %s\r\n\r\n", c.origin) }

// checked is the check of the only proxy, with the index of its last change.
func (f *fixture) checked(ctx context.Context) (*consul.HealthCheck, error) {
	checks, _, err := f.Consul.Client.Health().Checks(f.name, (&consul.QueryOptions{}).WithContext(ctx))
	if err == nil && len(checks) != 1 {
		err = fmt.Errorf("%d checks", len(checks))
	}
	if err != nil {
		return nil, err
	}
	return checks[0], nil
}

// TestCredentialsRotateUnderARunningProxy: also while the plugin is down. The
// proxy is never critical, and who is connected stays so.
func TestCredentialsRotateUnderARunningProxy(t *testing.T) {
	file := filepath.Join(t.TempDir(), "credentials.json")
	rotate(t, file, "one")
	f := own(t, cluster.Config{PluginConfig: fmt.Sprintf("credentials_file = %q", file)})
	var probes atomic.Int64
	site := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { probes.Add(1) }))
	t.Cleanup(site.Close)
	f.fleet(map[string]string{"count": "1", "auth": "crawl", "probe_urls": `["` + site.URL + `/"]`})
	entry := f.passing(1)[0]
	pid := f.listener(entry.Service.Port).PID
	open := f.tunnel(entry, "one")
	before, err := f.checked(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	with := func(password string) error {
		proxy := *proxyURL(entry)
		proxy.User = url.UserPassword(username, password)
		_, err := f.fetch(t.Context(), &proxy, f.Origin.HTTP+"/")
		return err
	}
	turned := func(from, to string) *consul.HealthCheck {
		t.Helper()
		f.until("the proxy wants the new password", func(context.Context) error { return with(to) })
		if with(from) == nil {
			t.Errorf("the password %q is still good", from)
		}
		if err := open.page(); err != nil {
			t.Errorf("the tunnel of before: %v", err)
		}
		enough := probes.Load() + 3
		f.until("the proxy passes more probes", func(context.Context) error {
			if n := probes.Load(); n < enough {
				return errNotYet(int(n), nil)
			}
			return nil
		})
		after, err := f.checked(t.Context())
		if err != nil || after.Status != consul.HealthPassing {
			t.Fatalf("check %+v, %v, want it passing", after, err)
		}
		return after
	}
	rotate(t, file, password)
	if after := turned("one", password); after.ModifyIndex != before.ModifyIndex {
		t.Errorf("the check changed meanwhile: %+v, want it as it was at index %d", after, before.ModifyIndex)
	}
	f.event(f.name, `Credentials "crawl" were renewed`)

	if err := f.Nomad.Kill(); err != nil {
		t.Fatal(err)
	}
	plugin, err := f.Nomad.PluginProcess()
	if err != nil {
		t.Fatal(err)
	}
	if err := plugin.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	rotate(t, file, "three")
	if err := with(password); err != nil {
		t.Errorf("nobody told the proxy, and yet: %v", err)
	}
	if err := f.Nomad.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	turned(password, "three")
	if now := f.listener(entry.Service.Port).PID; now != pid {
		t.Errorf("the proxy is process %d, was %d", now, pid)
	}
}
