package kube

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/egress-proxies/egress/provider"
)

var update = flag.Bool("update", false, "write the golden files")

// golden compares with a file of testdata.
func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(file, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("%s (-want +got); go test -update writes it:\n%s", file, diff)
	}
}

func TestSquidConf(t *testing.T) {
	for name, c := range map[string]proxyConfig{
		"open": {port: 3128, allowClients: privateClients, fileDescriptors: defaultFileDescriptors},
		"auth": {port: 8080, passwords: filesDir + "/" + passwordFile, allowClients: []string{"10.1.0.0/16"},
			allowTargets: []string{"10.2.0.0/16", "fd00::/8"}, fileDescriptors: 1024},
	} {
		t.Run(name, func(t *testing.T) { golden(t, "squid-"+name+".conf", []byte(squidConf(c))) })
	}
}

// squid is Debian's, run as the pod runs it.
type squid struct {
	address string
	output  *bytes.Buffer
	end     func(os.Signal) error
}

// startSquid runs squid with our configuration until the test ends. Its files
// are those of the Secret in another place, with texts replaced as edit says.
func startSquid(t *testing.T, options map[string]any, auth provider.Credentials, edit ...string) *squid {
	t.Helper()
	s, err := parse(options)
	if err != nil {
		t.Fatal(err)
	}
	port := freePort(t)
	spec := provider.Spec{Name: "eg-squid", Port: port, Auth: auth}
	secret, err := newSecret(s, spec, newPod(s, spec))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for name, data := range secret.Data {
		data = []byte(strings.NewReplacer(append(edit, filesDir+"/", dir+"/")...).Replace(string(data)))
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	command := squidCommand(filepath.Join(dir, squidFile))
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Env = append(os.Environ(), "PATH=/usr/sbin:/usr/bin:/sbin:/bin")
	cmd.Stdout, cmd.Stderr, cmd.Dir = writer, writer, "/"
	if os.Getuid() == 0 { // as in the pod; runc gives a container its pipes
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: proxyUser, Gid: proxyUser}}
		for _, path := range []string{dir, filepath.Dir(dir)} {
			if err := os.Chown(path, proxyUser, proxyUser); err != nil {
				t.Fatal(err)
			}
		}
		if err := writer.Chown(proxyUser, proxyUser); err != nil {
			t.Fatal(err)
		}
	}
	if err := cmd.Start(); err != nil {
		t.Fatalf("%v: want squid from Debian's package", err)
	}
	_ = writer.Close()
	run := &squid{address: net.JoinHostPort("127.0.0.1", fmt.Sprint(port)), output: new(bytes.Buffer)}
	read := make(chan struct{})
	go func() {
		defer close(read)
		_, _ = io.Copy(run.output, reader)
	}()
	run.end = func(signal os.Signal) error {
		_ = cmd.Process.Signal(signal)
		err := cmd.Wait()
		<-read
		_ = reader.Close()
		run.end = func(os.Signal) error { return nil }
		return err
	}
	t.Cleanup(func() { _ = run.end(syscall.SIGKILL) })
	if err := awaitPort(run.address); err != nil {
		_ = run.end(syscall.SIGKILL)
		t.Fatalf("squid doesn't listen: %v\n%s", err, run.output)
	}
	return run
}

func freePort(t *testing.T) int {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return listener.Addr().(*net.TCPAddr).Port
}

func awaitPort(address string) error {
	deadline := time.Now().Add(30 * time.Second)
	for {
		conn, err := net.Dial("tcp", address)
		if err == nil {
			return conn.Close()
		}
		if time.Now().After(deadline) {
			return err
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// through is a client of the proxy that trusts the origin.
func (s *squid) through(t *testing.T, origin *httptest.Server, user *url.Userinfo) *http.Client {
	t.Helper()
	transport := &http.Transport{
		Proxy:             http.ProxyURL(&url.URL{Scheme: "http", Host: s.address, User: user}),
		DisableKeepAlives: true,
	}
	if certificate := origin.Certificate(); certificate != nil {
		pool := x509.NewCertPool()
		pool.AddCert(certificate)
		transport.TLSClientConfig = &tls.Config{RootCAs: pool}
	}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, Timeout: time.Minute}
}

// origins answer with the headers that they got.
func origins(t *testing.T) (plain, secure *httptest.Server) {
	t.Helper()
	echo := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _ = r.Header.Write(w) })
	plain, secure = httptest.NewServer(echo), httptest.NewTLSServer(echo)
	t.Cleanup(plain.Close)
	t.Cleanup(secure.Close)
	return plain, secure
}

func TestSquidAsksForThePassword(t *testing.T) {
	t.Parallel()
	plain, secure := origins(t)
	good := provider.Credentials{Username: "Crawl", Password: `p@:#$/% ä`}
	s := startSquid(t, map[string]any{"allow_targets": []any{"127.0.0.1"}}, good)
	for name, user := range map[string]*url.Userinfo{
		"nobody":         nil,
		"wrong password": url.UserPassword(good.Username, "p@:#$/%"),
		"other spelling": url.UserPassword("crawl", good.Password),
	} {
		response, err := s.through(t, plain, user).Get(plain.URL)
		if err != nil {
			t.Fatal(err)
		}
		_ = response.Body.Close()
		if response.StatusCode != http.StatusProxyAuthRequired {
			t.Errorf("%s: status %d, want 407", name, response.StatusCode)
		}
		// Go tells of a refused CONNECT by its status text.
		if _, err := s.through(t, secure, user).Get(secure.URL); err == nil || !strings.Contains(err.Error(), "Proxy Authentication Required") {
			t.Errorf("%s: CONNECT: %v, want 407", name, err)
		}
	}
	for _, origin := range []*httptest.Server{plain, secure} { // neither is on port 80 or 443
		response, err := s.through(t, origin, url.UserPassword(good.Username, good.Password)).Get(origin.URL)
		if err != nil {
			t.Fatalf("%v\n%s", err, s.output)
		}
		body, _ := io.ReadAll(response.Body)
		_ = response.Body.Close()
		if response.StatusCode != http.StatusOK {
			t.Errorf("%s: status %d, want 200", origin.URL, response.StatusCode)
		}
		for _, header := range []string{"Via", "X-Forwarded-For", "Proxy-Authorization"} {
			if strings.Contains(string(body), header) {
				t.Errorf("the origin got %s:\n%s", header, body)
			}
		}
	}
	if err := s.end(syscall.SIGTERM); err != nil {
		t.Errorf("squid ended with %v, want a clean end\n%s", err, s.output)
	}
	// Helpers give up rights that nobody has in the pod.
	text := strings.ReplaceAll(s.output.String(), "WARNING: no_suid: setuid(0)", "")
	for _, word := range []string{"WARNING", "ERROR", "FATAL", good.Password} {
		if strings.Contains(text, word) {
			t.Errorf("squid's output has %q:\n%s", word, text)
		}
	}
	if !strings.Contains(text, "CONNECT "+secure.Listener.Addr().String()) {
		t.Errorf("squid's output doesn't have the access log:\n%s", text)
	}
}

func TestSquidRefusesTargetsThatAreNotPublic(t *testing.T) {
	t.Parallel()
	plain, _ := origins(t)
	s := startSquid(t, nil, provider.Credentials{})
	for _, target := range []string{
		plain.Listener.Addr().String(), "10.96.0.1:443", "169.254.169.254:80", "[::1]:80", "[::ffff:10.0.0.1]:443",
		"[fd00::1]:443", "[64:ff9b::a00:1]:443", "[2002:a00:1::]:443", "localhost:80",
	} {
		if status := s.connect(t, target); status != http.StatusForbidden {
			t.Errorf("CONNECT %s: status %d, want 403", target, status)
		}
	}
}

func TestSquidRefusesOtherClients(t *testing.T) {
	t.Parallel()
	plain, _ := origins(t)
	s := startSquid(t, map[string]any{"allow_clients": []any{"192.0.2.0/24"}, "allow_targets": []any{"127.0.0.1"}}, provider.Credentials{})
	if status := s.connect(t, plain.Listener.Addr().String()); status != http.StatusForbidden {
		t.Errorf("status %d, want 403", status)
	}
}

// The loopback stands for the internet, which tests don't reach.
func TestSquidLetsTheInternetPass(t *testing.T) {
	t.Parallel()
	plain, _ := origins(t)
	s := startSquid(t, nil, provider.Credentials{}, "acl inner dst 127.0.0.0/8\n", "")
	if status := s.connect(t, plain.Listener.Addr().String()); status != http.StatusOK {
		t.Errorf("status %d, want 200\n%s", status, s.output)
	}
}

// connect asks for a tunnel and gives the status.
func (s *squid) connect(t *testing.T, target string) int {
	t.Helper()
	conn, err := net.Dial("tcp", s.address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(time.Minute))
	if _, err := fmt.Fprintf(conn, "CONNECT %s HTTP/1.1\r\nHost: %s\r\n\r\n", target, target); err != nil {
		t.Fatal(err)
	}
	response, err := http.ReadResponse(bufio.NewReader(conn), &http.Request{Method: http.MethodConnect})
	if err != nil {
		t.Fatal(err)
	}
	_ = response.Body.Close()
	return response.StatusCode
}
