package kvm

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"testing"

	"github.com/hashicorp/go-hclog"

	"github.com/egress-proxies/egress/provider"
	"github.com/egress-proxies/egress/provider/kvm/domain"
)

// Compare with `virsh vol-upload` and scp over the same SSH (docs/testing.md).
func BenchmarkRealUpload(b *testing.B) {
	const size = 256 << 20
	dense := make([]byte, size)
	if _, err := rand.Read(dense); err != nil {
		b.Fatal(err)
	}
	sparse := make([]byte, size)
	copy(sparse, dense[:size/16])
	options := realOptions(b, "bios")
	p := realProvider(b, options, "contract", b.TempDir())
	h, ctx := p.hosts[0], context.Background()
	const name = "egress-test-bench"
	document, err := domain.Volume{Name: name}.XML()
	if err != nil {
		b.Fatal(err)
	}
	for kind, content := range map[string][]byte{"dense": dense, "sparse": sparse} {
		b.Run(kind, func(b *testing.B) {
			b.SetBytes(size)
			for range b.N {
				if err := h.DeleteVolume(ctx, h.hostOptions.Pool, name); err != nil {
					b.Fatal(err)
				}
				if err := h.CreateVolume(ctx, h.hostOptions.Pool, document); err != nil {
					b.Fatal(err)
				}
				if err := h.Upload(ctx, h.hostOptions.Pool, name, bytes.NewReader(content)); err != nil {
					b.Fatal(err)
				}
			}
			if err := h.DeleteVolume(ctx, h.hostOptions.Pool, name); err != nil {
				b.Fatal(err)
			}
		})
	}
}

// List among many machines of others: calls/op must follow ours.
func BenchmarkList(b *testing.B) {
	for _, others := range []int{0, 900} {
		b.Run(fmt.Sprintf("100 of %d", others+100), func(b *testing.B) {
			host := newFake()
			for i := range others {
				if _, err := host.DefineDomain(b.Context(), fmt.Sprintf("<domain><name>other-%d</name></domain>", i)); err != nil {
					b.Fatal(err)
				}
			}
			for i := range 100 {
				if _, err := host.DefineDomain(b.Context(), fmt.Sprintf("<domain><name>eg-%d</name></domain>", i)); err != nil {
					b.Fatal(err)
				}
			}
			settings, err := parse(map[string]any{"host": map[string]any{"a": map[string]any{"address": "unix:///s"}}})
			if err != nil {
				b.Fatal(err)
			}
			p := build(settings, provider.Env{Cluster: "contract", Logger: hclog.NewNullLogger()}, func(hostSettings) hypervisor { return host })
			defer p.Close()
			clear(host.calls)
			for b.Loop() {
				if _, err := p.List(b.Context()); err != nil {
					b.Fatal(err)
				}
			}
			calls := 0
			for _, n := range host.calls {
				calls += n
			}
			b.ReportMetric(float64(calls)/float64(b.N), "calls/op")
		})
	}
}
