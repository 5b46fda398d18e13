package forward

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// The benchmarks compare with squid and tinyproxy from Debian in one run on one
// machine: what counts are the ratios, ours to theirs.

// rival is a proxy process under measurement.
type rival struct {
	name string
	addr string
	pid  int // the process that does the work
}

// cpu is the processor time that it has used.
func (r rival) cpu(b *testing.B) time.Duration {
	b.Helper()
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", r.pid))
	if err != nil {
		b.Fatal(err)
	}
	fields := strings.Fields(string(content[strings.LastIndexByte(string(content), ')')+1:]))
	user, _ := strconv.Atoi(fields[11])
	system, _ := strconv.Atoi(fields[12])
	return time.Duration(user+system) * 10 * time.Millisecond // USER_HZ is 100
}

const benchProxy = "EGRESS_BENCH_PROXY"

func init() {
	if os.Getenv(benchProxy) != "" {
		os.Exit(Main(os.Stdin))
	}
}

// run starts a proxy and waits until it listens.
func run(b *testing.B, command *exec.Cmd, addr string) {
	b.Helper()
	if err := command.Start(); err != nil {
		b.Fatalf("%v (make bench installs squid and tinyproxy)", err)
	}
	b.Cleanup(func() {
		_ = command.Process.Signal(syscall.SIGKILL)
		_ = command.Wait()
	})
	deadline := time.Now().Add(20 * time.Second)
	for {
		conn, err := net.Dial("tcp", addr)
		if err == nil {
			_ = conn.Close()
			return
		}
		if time.Now().After(deadline) {
			b.Fatalf("%s does not listen on %s", command.Path, addr)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func freeAddr(b *testing.B) (addr, port string) {
	b.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	_, port, _ = net.SplitHostPort(listener.Addr().String())
	return listener.Addr().String(), port
}

// rivals starts ours, squid and tinyproxy, each logging to /dev/null or not at
// all, without caches.
func rivals(b *testing.B) []rival {
	b.Helper()
	dir := b.TempDir()
	if err := os.Chmod(dir, 0o755); err != nil {
		b.Fatal(err)
	}
	addr, _ := freeAddr(b)
	config, err := json.Marshal(Config{Listen: addr, AllowClients: loopback, AllowTargets: loopback, AccessLog: "off", IdleTimeout: time.Minute})
	if err != nil {
		b.Fatal(err)
	}
	ours := exec.Command(os.Args[0])
	ours.Env, ours.Stdin = append(os.Environ(), benchProxy+"=1"), strings.NewReader(string(config))
	run(b, ours, addr)
	all := []rival{{"egress", addr, ours.Process.Pid}}

	squidAddr, squidPort := freeAddr(b)
	conf := filepath.Join(dir, "squid.conf")
	write(b, conf, `http_port 127.0.0.1:`+squidPort+`
http_access allow all
cache deny all
cache_mem 8 MB
access_log none
cache_log /dev/null
cache_store_log none
pid_filename none
visible_hostname bench
max_filedescriptors 8192
pinger_enable off
shutdown_lifetime 0 seconds
coredump_dir /tmp
via off
forwarded_for delete
`)
	squid := exec.Command("squid", "-N", "-f", conf)
	run(b, squid, squidAddr)
	all = append(all, rival{"squid", squidAddr, squid.Process.Pid})

	tinyAddr, tinyPort := freeAddr(b)
	conf = filepath.Join(dir, "tinyproxy.conf")
	write(b, conf, `Port `+tinyPort+`
Listen 127.0.0.1
Timeout 600
MaxClients 1000
LogLevel Critical
LogFile "/dev/null"
DisableViaHeader Yes
Allow 127.0.0.1
`)
	tiny := exec.Command("tinyproxy", "-d", "-c", conf)
	run(b, tiny, tinyAddr)
	return append(all, rival{"tinyproxy", tinyAddr, tiny.Process.Pid})
}

func write(b *testing.B, path, content string) {
	b.Helper()
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		b.Fatal(err)
	}
}

// report gives our figure and its ratio to each rival's.
func report(b *testing.B, unit string, figures map[string]float64) {
	b.Helper()
	b.ReportMetric(figures["egress"], unit)
	for _, name := range []string{"squid", "tinyproxy"} {
		if figures[name] > 0 {
			b.ReportMetric(figures["egress"]/figures[name], unit+"-vs-"+name)
		}
	}
}

// small answers like a small page.
func small(b *testing.B) *httptest.Server {
	b.Helper()
	body := strings.Repeat("x", 1024)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, body) }))
	b.Cleanup(server.Close)
	return server
}

// measure runs a number of requests on four connections at once.
func measure(b *testing.B, n int, one func(worker int) error) time.Duration {
	b.Helper()
	const workers = 4
	begin := time.Now()
	failed := make(chan error, workers)
	for worker := range workers {
		go func() {
			var err error
			for i := worker; i < n && err == nil; i += workers {
				err = one(worker)
			}
			failed <- err
		}()
	}
	for range workers {
		if err := <-failed; err != nil {
			b.Error(err)
		}
	}
	return time.Since(begin)
}

// BenchmarkPlainGET is 1 KiB pages by http in absolute form, with keep-alive.
func BenchmarkPlainGET(b *testing.B) {
	server := small(b)
	all := rivals(b)
	rates := map[string]float64{}
	b.ResetTimer()
	n := max(b.N, 2000)
	for _, r := range all {
		transport := &http.Transport{
			Proxy:               http.ProxyURL(&url.URL{Scheme: "http", Host: r.addr}),
			MaxIdleConnsPerHost: 8,
		}
		client := &http.Client{Transport: transport}
		took := measure(b, n, func(int) error {
			response, err := client.Get(server.URL)
			if err != nil {
				return fmt.Errorf("%s: %w", r.name, err)
			}
			_, err = io.Copy(io.Discard, response.Body)
			_ = response.Body.Close()
			return err
		})
		transport.CloseIdleConnections()
		rates[r.name] = float64(n) / took.Seconds()
	}
	report(b, "req/s", rates)
}

// BenchmarkConnectGET is a tunnel, one 1 KiB page and the end, each time.
func BenchmarkConnectGET(b *testing.B) {
	server := small(b)
	target := strings.TrimPrefix(server.URL, "http://")
	all := rivals(b)
	rates := map[string]float64{}
	b.ResetTimer()
	n := max(b.N, 1000)
	for _, r := range all {
		took := measure(b, n, func(int) error {
			response, closeTunnel, err := through(r.addr, target, "/")
			if err != nil {
				return fmt.Errorf("%s: %w", r.name, err)
			}
			defer closeTunnel()
			_, err = io.Copy(io.Discard, response.Body)
			return err
		})
		rates[r.name] = float64(n) / took.Seconds()
	}
	report(b, "tunnels/s", rates)
}

// through opens a tunnel and sends a GET.
func through(proxy, target, path string) (*http.Response, func(), error) {
	conn, err := net.Dial("tcp", proxy)
	if err != nil {
		return nil, nil, err
	}
	closeTunnel := func() { _ = conn.Close() }
	reader := bufio.NewReaderSize(conn, 64<<10)
	for _, request := range []string{
		"CONNECT " + target + " HTTP/1.1\r\nHost: " + target + "\r\n\r\n",
		"GET " + path + " HTTP/1.1\r\nHost: " + target + "\r\nConnection: close\r\n\r\n",
	} {
		method, _, _ := strings.Cut(request, " ")
		var response *http.Response
		if _, err = io.WriteString(conn, request); err == nil {
			response, err = http.ReadResponse(reader, &http.Request{Method: method})
		}
		if err != nil || response.StatusCode != http.StatusOK {
			closeTunnel()
			return nil, nil, fmt.Errorf("%s: %v, %w", method, response, err)
		}
		if method == http.MethodGet {
			return response, closeTunnel, nil
		}
	}
	return nil, nil, nil
}

// BenchmarkConnectDownload is one large download through a tunnel; the
// processor time is that of the proxy's process.
func BenchmarkConnectDownload(b *testing.B) {
	const size = 1 << 30
	chunk := make([]byte, 1<<20)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", strconv.Itoa(size))
		for range size / len(chunk) {
			if _, err := w.Write(chunk); err != nil {
				return
			}
		}
	}))
	defer server.Close()
	target := strings.TrimPrefix(server.URL, "http://")
	all := rivals(b)
	speed, cpu := map[string]float64{}, map[string]float64{}
	b.ResetTimer()
	for range b.N {
		for _, r := range all {
			used, begin := r.cpu(b), time.Now()
			response, closeTunnel, err := through(r.addr, target, "/")
			if err != nil {
				b.Fatal(err)
			}
			n, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{response.Body}, chunk)
			if err != nil || n != size {
				b.Fatalf("%s: %d bytes, %v", r.name, n, err)
			}
			speed[r.name] += size / 1e6 / time.Since(begin).Seconds() / float64(b.N)
			closeTunnel()
			cpu[r.name] += max(r.cpu(b)-used, 5*time.Millisecond).Seconds() / (size / 1e9) / float64(b.N)
		}
	}
	report(b, "MB/s", speed)
	report(b, "cpu-s/GB", cpu)
}
