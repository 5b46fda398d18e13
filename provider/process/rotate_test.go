package process

import (
	"bufio"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/egress-proxies/egress/provider"
)

// echo accepts connections and sends back what comes.
func echo(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer func() { _ = conn.Close() }()
				_, _ = io.Copy(conn, conn)
			}()
		}
	}()
	return listener.Addr().String()
}

// tunnel asks the instance for a tunnel and gives the answer's status; the
// connection closes when the test ends.
func tunnel(t *testing.T, instance provider.Instance, auth provider.Credentials, target string) (conn net.Conn, status int) {
	t.Helper()
	conn, err := net.Dial("tcp", hostPort(instance))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(30 * time.Second))
	encoded := base64.StdEncoding.EncodeToString([]byte(auth.Username + ":" + auth.Password))
	if _, err := fmt.Fprintf(conn, "CONNECT %[1]s HTTP/1.1\r\nHost: %[1]s\r\nProxy-Authorization: Basic %[2]s\r\n\r\n", target, encoded); err != nil {
		t.Fatal(err)
	}
	response, err := http.ReadResponse(bufio.NewReader(conn), &http.Request{Method: http.MethodConnect})
	if err != nil {
		t.Fatal(err)
	}
	_ = response.Body.Close()
	return conn, response.StatusCode
}

func accepts(t *testing.T, instance provider.Instance, target string, auth provider.Credentials, want int) {
	t.Helper()
	conn, status := tunnel(t, instance, auth, target)
	_ = conn.Close()
	if status != want {
		t.Errorf("%s gets %d, want %d", auth, status, want)
	}
}

// TestRotateKeepsTunnels: by another plugin than the one that started it, deep
// in the file system, the old credentials go and what is open stays.
func TestRotateKeepsTunnels(t *testing.T) {
	dir := filepath.Join(t.TempDir(), strings.Repeat("deep/", 30))
	options := map[string]any{"allow_targets": []string{"127.0.0.0/8"}}
	spec := instanceSpec(t)
	before := provider.Credentials{Username: "crawl", Password: "one"}
	after := provider.Credentials{Username: "crawler", Password: `p@:#$/%"`}
	spec.Auth = before
	p := newProvider(t, dir, "test", options)
	instance := launch(t, p, spec)
	listens(t, instance)
	target := echo(t)
	open, status := tunnel(t, instance, before, target)
	if status != http.StatusOK {
		t.Fatalf("tunnel before: %d", status)
	}
	restarted := newProvider(t, dir, "test", options)
	for range 2 { // it may be repeated
		if err := restarted.Rotate(t.Context(), instance.Ref, after); err != nil {
			t.Fatal(err)
		}
	}
	accepts(t, instance, target, before, http.StatusProxyAuthRequired)
	accepts(t, instance, target, after, http.StatusOK)
	if _, err := io.WriteString(open, "hello"); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(io.LimitReader(open, 5)); err != nil || string(got) != "hello" {
		t.Errorf("the open tunnel: %q, %v", got, err)
	}
	secretless(t, p, instance, after.Password)

	// A start that was cut off and comes again has the credentials of now.
	spec.Auth = provider.Credentials{Username: "third", Password: "three"}
	if _, err := restarted.Create(t.Context(), spec); err != nil {
		t.Fatal(err)
	}
	accepts(t, instance, target, after, http.StatusProxyAuthRequired)
	accepts(t, instance, target, spec.Auth, http.StatusOK)
}

func TestRotateSaysWhyNot(t *testing.T) {
	p := newProvider(t, t.TempDir(), "test", map[string]any{"allow_targets": []string{"127.0.0.0/8"}})
	good := provider.Credentials{Username: "u", Password: "p"}
	refused := func(name string, ref provider.Ref, auth provider.Credentials, class error, part string) {
		t.Helper()
		err := p.Rotate(t.Context(), ref, auth)
		if !errors.Is(err, class) || !strings.Contains(err.Error(), part) {
			t.Errorf("%s: %v, want %v and %q", name, err, class, part)
		}
	}
	refused("nothing there", provider.Ref{Name: provider.Name("test", "alloc", "task")}, good, provider.ErrNotFound, "does not run")

	command := script(t, "exec sleep 1000")
	launch(t, p, command)
	refused("command", provider.Ref{Name: command.Name}, good, provider.ErrPermanent, "/bin/sh")
	if err := p.Delete(t.Context(), provider.Ref{Name: command.Name}); err != nil {
		t.Fatal(err)
	}

	spec := instanceSpec(t)
	spec.Auth = good
	instance := launch(t, p, spec)
	listens(t, instance)
	for name, bad := range map[string]provider.Credentials{
		"empty": {}, "colon": {Username: "a:b", Password: "p"},
	} {
		refused(name, instance.Ref, bad, provider.ErrTransient, "username")
	}
	accepts(t, instance, echo(t), good, http.StatusOK)
}
