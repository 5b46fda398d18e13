package process

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/egress-proxies/egress/provider"
)

// instanceSpec is a spec with everything that a test doesn't care about.
func instanceSpec(t *testing.T) provider.Spec {
	t.Helper()
	labels := provider.Labels{Cluster: "test", Namespace: "default", Job: "job", Alloc: "a1b2c3d4-0000", Task: t.Name()}
	return provider.Spec{
		Name:   provider.Name("test", labels.Alloc, labels.Task),
		Labels: labels, Listen: "127.0.0.1", Port: freePort(t),
	}
}

// launch creates an instance that is deleted when the test ends.
func launch(t *testing.T, p *Provider, spec provider.Spec) provider.Instance {
	t.Helper()
	t.Cleanup(func() {
		if err := p.Delete(context.Background(), provider.Ref{Name: spec.Name}); err != nil {
			t.Errorf("delete: %v", err)
		}
	})
	instance, err := p.Create(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	return instance
}

// eventually waits for a condition.
func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	deadline := time.NewTimer(30 * time.Second)
	defer deadline.Stop()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !condition() {
		select {
		case <-tick.C:
		case <-deadline.C:
			t.Fatalf("never: %s", what)
		}
	}
}

func hostPort(instance provider.Instance) string {
	return net.JoinHostPort(instance.Address, strconv.Itoa(instance.Port))
}

// listens waits until the instance accepts connections.
func listens(t *testing.T, instance provider.Instance) {
	t.Helper()
	eventually(t, "the proxy listens", func() bool {
		conn, err := net.Dial("tcp", hostPort(instance))
		if err != nil {
			return false
		}
		return conn.Close() == nil
	})
}

func TestFetchThroughInstance(t *testing.T) {
	origin := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello") })
	plain, secure := httptest.NewServer(origin), httptest.NewTLSServer(origin)
	defer plain.Close()
	defer secure.Close()
	p := newProvider(t, t.TempDir(), "test", map[string]any{"allow_targets": []string{"127.0.0.0/8"}})
	spec := instanceSpec(t)
	spec.Auth = provider.Credentials{Username: "crawl", Password: "p@:#$/%"}
	instance := launch(t, p, spec)
	listens(t, instance)

	address := &url.URL{
		Scheme: "http", Host: hostPort(instance),
		User: url.UserPassword(spec.Auth.Username, spec.Auth.Password),
	}
	transport := &http.Transport{
		Proxy:           http.ProxyURL(address),
		TLSClientConfig: &tls.Config{RootCAs: secure.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs},
	}
	defer transport.CloseIdleConnections()
	for _, target := range []string{plain.URL, secure.URL} {
		response, err := (&http.Client{Transport: transport}).Get(target)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(response.Body)
		_ = response.Body.Close()
		if err != nil || string(body) != "hello" {
			t.Errorf("%s through the instance: %q, %v", target, body, err)
		}
	}
	secretless(t, p, instance, spec.Auth.Password)
}

// secretless checks that the password is in no list of processes and no output.
func secretless(t *testing.T, p *Provider, instance provider.Instance, password string) {
	t.Helper()
	for _, file := range []string{"run.json", "supervisor.log", "output.*"} {
		matches, err := filepath.Glob(filepath.Join(p.dir, instance.Name, file))
		if err != nil {
			t.Fatal(err)
		}
		for _, match := range matches {
			if strings.Contains(readFile(t, match), password) {
				t.Errorf("%s shows the password", match)
			}
		}
	}
	var run struct {
		Child, Supervisor struct{ PID int }
	}
	if err := json.Unmarshal([]byte(readFile(t, filepath.Join(p.dir, instance.Name, "run.json"))), &run); err != nil {
		t.Fatal(err)
	}
	for _, pid := range []int{run.Child.PID, run.Supervisor.PID} {
		for _, file := range []string{"cmdline", "environ"} {
			if strings.Contains(readFile(t, fmt.Sprintf("/proc/%d/%s", pid, file)), password) {
				t.Errorf("/proc/%d/%s shows the password", pid, file)
			}
		}
	}
}
