package process

import (
	"fmt"
	"net"
	"strconv"
	"testing"

	"github.com/egress-proxies/egress/provider"
)

// BenchmarkCreate is the start of an instance up to its first accepted
// connection, and its end. It also reports what an idle instance occupies, the
// supervisor's and the proxy's proportional shares, in this small test binary;
// docs/process.md has the figures of the whole one.
func BenchmarkCreate(b *testing.B) {
	built, err := New(provider.Config{Name: "local", Type: Type}, provider.Env{Cluster: "test", StateDir: b.TempDir()})
	if err != nil {
		b.Fatal(err)
	}
	p, ok := built.(*Provider)
	if !ok {
		b.Fatalf("built a %T", built)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	_, port, _ := net.SplitHostPort(listener.Addr().String())
	_ = listener.Close()
	var memory float64
	for i := range b.N {
		labels := provider.Labels{Cluster: "test", Alloc: fmt.Sprint(i), Task: "bench"}
		spec := provider.Spec{Name: provider.Name("test", labels.Alloc, labels.Task), Labels: labels, Listen: "127.0.0.1"}
		spec.Port, _ = strconv.Atoi(port)
		instance, err := p.Create(b.Context(), spec)
		if err != nil {
			b.Fatal(err)
		}
		for {
			conn, err := net.Dial("tcp", net.JoinHostPort("127.0.0.1", port))
			if err == nil {
				_ = conn.Close()
				break
			}
		}
		stats, err := p.Stats(b.Context(), instance.Ref)
		if err != nil {
			b.Fatal(err)
		}
		memory += float64(stats.MemoryBytes) / (1 << 20) / float64(b.N)
		if err := p.Delete(b.Context(), instance.Ref); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(memory, "MiB-idle")
}
