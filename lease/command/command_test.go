package command

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/egress-proxies/egress/lease"
	"github.com/egress-proxies/egress/lease/api"
	"github.com/egress-proxies/egress/lease/client"
	leasehttp "github.com/egress-proxies/egress/lease/http"
)

const hardPassword = "p@:#$/%"

// forwardProxy is a proxy that wants a user and a password. It answers plain
// requests itself, as the site behind it.
func forwardProxy(t *testing.T, answer http.HandlerFunc) (host string, port int) {
	t.Helper()
	want := "Basic " + base64.StdEncoding.EncodeToString([]byte("user:"+hardPassword))
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Proxy-Authorization") != want {
			w.Header().Set("Proxy-Authenticate", "Basic")
			w.WriteHeader(http.StatusProxyAuthRequired)
			return
		}
		answer(w, r)
	}))
	t.Cleanup(server.Close)
	host, text, _ := net.SplitHostPort(server.Listener.Addr().String())
	port, _ = strconv.Atoi(text)
	return host, port
}

// leaseServer is a service over proxies that want the password.
func leaseServer(t *testing.T, answers map[string]http.HandlerFunc) (url string, s *lease.Service) {
	t.Helper()
	s = lease.NewService(lease.Config{})
	s.SetCredentials(func(string) bool { return true })
	var list []*lease.Proxy
	for id, answer := range answers {
		host, port := forwardProxy(t, answer)
		list = append(list, &lease.Proxy{ID: id, Address: host, Port: port, Auth: "crawl", MaxLeases: 1, Healthy: true, Attributes: map[string]string{"country": "DE"}})
	}
	s.SetProxies(list)
	resign, _ := s.Lead(nil, nil)
	server := httptest.NewServer(leasehttp.New(leasehttp.Config{Service: s,
		Credentials: func(string) (string, string, bool) { return "user", hardPassword, true }}))
	t.Cleanup(func() {
		server.Close()
		resign()
	})
	return server.URL, s
}

func hello(w http.ResponseWriter, r *http.Request) {
	_, _ = io.WriteString(w, "hello from "+r.URL.Host)
}

// run runs the command line.
func run(t *testing.T, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	root := &cobra.Command{Use: "egress", SilenceUsage: true}
	root.AddCommand(Commands()...)
	var out, errs bytes.Buffer
	root.SetOut(&out)
	root.SetErr(&errs)
	root.SetArgs(args)
	err = root.ExecuteContext(t.Context())
	return out.String(), errs.String(), err
}

func code(err error) int {
	var c interface{ ExitCode() int }
	if errors.As(err, &c) {
		return c.ExitCode()
	}
	if err != nil {
		return 1
	}
	return 0
}

// Case 26.
func TestReturnedURLWorksWithCurlAndGo(t *testing.T) {
	url, _ := leaseServer(t, map[string]http.HandlerFunc{"a": hello})
	out, _, err := run(t, "lease", "acquire", "--address", url, "--json")
	if err != nil {
		t.Fatal(err)
	}
	var leases []api.Lease
	if err := json.Unmarshal([]byte(out), &leases); err != nil {
		t.Fatal(err)
	}
	if got, err := exec.Command("curl", "-s", "--proxy", leases[0].URL, "http://site.example/").CombinedOutput(); string(got) != "hello from site.example" {
		t.Errorf("curl: %q, %v", got, err)
	}
	if _, _, err := run(t, "lease", "release", "--address", url, leases[0].ID); err != nil {
		t.Fatal(err)
	}
	c, err := client.New(client.Config{Address: url})
	if err != nil {
		t.Fatal(err)
	}
	response, err := (&http.Client{Transport: &client.Transport{Client: c}}).Get("http://site.example/")
	if err != nil {
		t.Fatal(err)
	}
	body, _ := io.ReadAll(response.Body)
	response.Body.Close()
	if string(body) != "hello from site.example" {
		t.Errorf("Go: %q", body)
	}
}

func TestTransportReportsABlockAndTriesAnotherProxy(t *testing.T) {
	var blocked atomic.Int32
	url, s := leaseServer(t, map[string]http.HandlerFunc{"b": hello, "a": func(w http.ResponseWriter, _ *http.Request) {
		blocked.Add(1)
		w.WriteHeader(http.StatusForbidden)
	}})
	c, err := client.New(client.Config{Address: url})
	if err != nil {
		t.Fatal(err)
	}
	web := &http.Client{Transport: &client.Transport{Client: c}}
	for range 3 {
		response, err := web.Post("http://site.example/x", "text/plain", strings.NewReader("body"))
		if err != nil {
			t.Fatal(err)
		}
		if response.StatusCode != http.StatusOK {
			t.Error(response.Status)
		}
		response.Body.Close()
	}
	if blocked.Load() != 1 {
		t.Errorf("the proxy that is blocked was used %d times", blocked.Load())
	}
	if leases, _ := s.Leases(t.Context()); len(leases) != 0 {
		t.Errorf("%d leases are left", len(leases))
	}
	if cooling, _ := s.Cooldowns(t.Context()); len(cooling) != 1 || cooling[0].Target != "site.example" {
		t.Errorf("cooldowns %+v", cooling)
	}
}

func TestExecRunsThroughALeaseAndGivesItBack(t *testing.T) {
	url, s := leaseServer(t, map[string]http.HandlerFunc{"a": hello})
	t.Setenv("NO_PROXY", "*")
	out, _, err := run(t, "lease", "exec", "country=DE", "--address", url, "--ttl", "1s", "--", "sh", "-c", `sleep 1.5; curl -s http://site.example/; exit 7`)
	if code(err) != 7 || out != "hello from site.example" {
		t.Errorf("%q, %v", out, err)
	}
	if leases, _ := s.Leases(t.Context()); len(leases) != 0 {
		t.Errorf("%d leases are left", len(leases))
	}
	if _, _, err := run(t, "lease", "exec", "country=PL", "--address", url, "--", "true"); code(err) != exitNoProxy {
		t.Errorf("no proxy: %v", err)
	}
	if _, _, err := run(t, "lease", "exec", "country=DE", "--address", url); err == nil || !strings.Contains(err.Error(), "--") {
		t.Errorf("no command: %v", err)
	}
}

func TestExecEndsTheCommandWhenTheLeaseIsLost(t *testing.T) {
	url, s := leaseServer(t, map[string]http.HandlerFunc{"a": hello})
	done := make(chan error, 1)
	go func() {
		_, _, err := run(t, "lease", "exec", "--address", url, "--ttl", "1s", "--", "sleep", "60")
		done <- err
	}()
	for {
		leases, err := s.Leases(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if len(leases) == 1 {
			_ = s.Release(t.Context(), leases[0].ID)
			break
		}
	}
	select {
	case err := <-done:
		if code(err) != exitEnded {
			t.Error(err)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("the command goes on without a lease")
	}
}

func TestVerbs(t *testing.T) {
	url, service := leaseServer(t, map[string]http.HandlerFunc{"a": hello})
	service.SetPlaces([]lease.Place{{ID: "n1/a", Provider: "hv", Type: "kvm", Name: "a", Node: "n1", State: lease.PlaceNotReady,
		Reason: "PoolNearlyFull", Facts: map[string]string{"pool_available_gib": "4", "pool_capacity_gib": "1862", "memory_available_mib": "900"}}})
	t.Setenv("EGRESS_LEASE_ADDRESS", url)
	out, _, err := run(t, "lease", "acquire", "country=DE", "--target", "HTTPS://X.example", "--client", "me", "--json")
	var leases []api.Lease
	if err != nil || json.Unmarshal([]byte(out), &leases) != nil {
		t.Fatalf("%s, %v", out, err)
	}
	id := leases[0].ID
	for _, test := range []struct {
		args string
		code int
		want string
	}{
		{"lease list", 0, "x.example"},
		{"lease acquire", exitNoProxy, "1 at capacity"},
		{"lease acquire country=", 1, "at character 9"},
		{"lease renew " + id + " --ttl 5m", 0, "5m0s"},
		{"lease report " + id + " blocked", 0, "cools for x.example"},
		{"lease report " + id + " ok", 0, "noted"},
		{"lease report " + id + " meh", 1, "want \"ok\""},
		{"proxies", 0, "blocked by x.example"},
		{"proxies country=PL --json", 0, "[]"},
		{"proxies freeze a --reason spam", 0, "frozen: spam"},
		{"proxies drain a", 0, "draining"},
		{"proxies unfreeze a", 0, "at_capacity"},
		{"proxies freeze nobody", 1, "unknown proxy"},
		{"lease release " + id + " " + id, 0, ""},
		{"lease renew " + id, exitEnded, "released"},
		{"lease list --json", 0, "[]"},
		{"lease targets", 0, "not ready  PoolNearlyFull  4 of 1862 GiB, 900 MiB memory"},
		{"lease targets --json", 0, `"state": "not_ready"`},
	} {
		out, _, err := run(t, strings.Fields(test.args)...)
		text := out
		if err != nil {
			text += err.Error()
		}
		if code(err) != test.code || !strings.Contains(text, test.want) {
			t.Errorf("%s: code %d, %s; want %d, %q", test.args, code(err), text, test.code, test.want)
		}
	}
}

func TestServeRefusesWhatCannotWork(t *testing.T) {
	for args, want := range map[string]string{
		"--listen 0.0.0.0:0":                "--token-file",
		"--listen nonsense":                 "host:port",
		"--store disk":                      "want memory or consul",
		"--target-match all":                "want host or domain",
		"--log-level loud":                  "want trace",
		"--credentials-file /nonexistent":   "credentials file",
		"--token-file /nonexistent":         "token file",
		"--store consul --consul-prefix /x": "want a path",
		"--store consul --listen 0.0.0.0:0 --token-file /dev/null": "--advertise",
		"--listen 127.0.0.1:0 --store consul --advertise here":     "want a URL",
	} {
		if _, _, err := run(t, append([]string{"lease", "serve", "--listen", "127.0.0.1:0"}, strings.Fields(args)...)...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", args, err, want)
		}
	}
	t.Setenv("EGRESS_LEASE_STORE", "disk")
	if _, _, err := run(t, "lease", "serve", "--listen", "127.0.0.1:0"); err == nil || !strings.Contains(err.Error(), "want memory or consul") {
		t.Errorf("from the environment: %v", err)
	}
}
