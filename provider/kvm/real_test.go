package kvm

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/go-hclog"

	"github.com/egress-proxies/egress/provider"
	"github.com/egress-proxies/egress/provider/kvm/domain"
	"github.com/egress-proxies/egress/provider/providertest"
)

// realHosts are host blocks as JSON. The test bed of e2e/hypervisor sets the
// variable and runs this package's tests where its daemons can be reached.
const realHosts = "EGRESS_KVM_HOSTS"

// realOptions are those of a provider on real daemons, and an image without a
// system on it: its machines run and never have an address.
func realOptions(t testing.TB, firmware string) map[string]any {
	t.Helper()
	raw := os.Getenv(realHosts)
	if raw == "" {
		t.Skipf("%s is not set: run by e2e/hypervisor", realHosts)
	}
	var hosts map[string]any
	if err := json.Unmarshal([]byte(raw), &hosts); err != nil {
		t.Fatal(err)
	}
	disk := bytes.Repeat([]byte{0, 1, 0xFE, 0xFF}, 64<<10)
	disk[510], disk[511] = 0x55, 0xAA
	path := filepath.Join(t.TempDir(), "image.raw")
	if err := os.WriteFile(path, disk, 0o600); err != nil {
		t.Fatal(err)
	}
	return map[string]any{
		"host":          hosts,
		"image":         map[string]any{"test": map[string]any{"url": path, "firmware": firmware}},
		"machine_type":  map[string]any{"small": map[string]any{"cores": 1, "memory_mib": 128}},
		"default_image": "test",
	}
}

func realProvider(t testing.TB, options map[string]any, cluster, state string) *Provider {
	t.Helper()
	logger := hclog.NewNullLogger()
	if os.Getenv("EGRESS_TEST_TRACE") != "" {
		logger = hclog.New(&hclog.LoggerOptions{Level: hclog.Debug})
	}
	p, err := New(provider.Config{Name: "hv", Type: Type, Options: options},
		provider.Env{Cluster: cluster, Node: "node", StateDir: state, Logger: logger})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.(*Provider).Close(); err != nil {
			t.Error(err)
		}
	})
	return p.(*Provider)
}

func TestRealContract(t *testing.T) {
	options, state := realOptions(t, "bios"), t.TempDir()
	outside := realProvider(t, options, "contract", t.TempDir())
	providertest.Run(t, providertest.Harness{
		New: func(t *testing.T, cluster string) provider.Provider {
			return realProvider(t, options, cluster, state)
		},
		Spec: spec,
		End: func(t *testing.T, i provider.Instance) {
			h, d, err := outside.find(t.Context(), i.Ref)
			if err == nil {
				err = h.DestroyDomain(t.Context(), d)
			}
			if err != nil {
				t.Fatal(err)
			}
		},
		Count: func(t *testing.T, name string) int {
			n, ctx := 0, context.WithoutCancel(t.Context()) // it is asked in the end, too
			for _, h := range outside.hosts {
				if _, err := h.LookupDomain(ctx, name); err == nil {
					n++
				}
				volumes, err := h.ListVolumes(ctx, h.hostOptions.Pool)
				if err != nil {
					t.Fatal(err)
				}
				for _, volume := range volumes {
					if _, owner, _, ok := domain.ParseVolumeName(volume); ok && owner == name {
						n++
					}
				}
			}
			return n
		},
		UnknownZone: "typo",
		NoAddress:   true,
	})
}

// Case 39: UEFI leaves variables, which are undefined with the machine. The
// firmware also shows that the console's file is read.
func TestRealUEFI(t *testing.T) {
	p := realProvider(t, realOptions(t, "uefi"), "contract", t.TempDir())
	s := named(t, "uefi")
	i := create(t, p, s)
	t.Cleanup(func() {
		if err := p.Delete(context.WithoutCancel(t.Context()), i.Ref); err != nil {
			t.Error(err)
		}
	})
	reader, err := p.Console(t.Context(), i.Ref, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	seen := ""
	for b := make([]byte, 4096); !strings.Contains(seen, "UEFI"); {
		n, err := reader.Read(b)
		if err != nil {
			t.Fatalf("console: %v after %q", err, seen)
		}
		seen += string(b[:n])
	}
	if stats, err := p.Stats(t.Context(), i.Ref); err != nil || stats.CPUTime == 0 || stats.MemoryBytes == 0 {
		t.Errorf("stats %+v, %v", stats, err)
	}
	if err := p.Delete(t.Context(), i.Ref); err != nil {
		t.Errorf("delete of a UEFI machine: %v", err)
	}
}

func TestRealWatchTellsTheEnd(t *testing.T) {
	p := realProvider(t, realOptions(t, "bios"), "contract", t.TempDir())
	i := create(t, p, named(t, "watch"))
	updates, err := p.Watch(t.Context(), i.Ref)
	if err != nil {
		t.Fatal(err)
	}
	<-updates
	h, d, err := p.find(t.Context(), i.Ref)
	if err == nil {
		err = h.DestroyDomain(t.Context(), d)
	}
	if err != nil {
		t.Fatal(err)
	}
	ended := <-updates
	for ended.State == provider.Stopping { // libvirt says so on its way down
		ended = <-updates
	}
	if ended.State != provider.Stopped || !strings.Contains(ended.Reason, "destroyed") {
		t.Errorf("state %v (%s), want stopped, destroyed", ended.State, ended.Reason)
	}
	if err := p.Delete(t.Context(), i.Ref); err != nil {
		t.Error(err)
	}
	for range updates {
	}
}

func TestRealCheck(t *testing.T) {
	options := realOptions(t, "bios")
	for _, v := range realProvider(t, options, "contract", "").Check(t.Context()) {
		if !v.Ready || v.Facts["libvirt_version"] == "" || v.Facts["pool_capacity_bytes"] == "" || v.Facts["memory_available_bytes"] == "" {
			t.Errorf("verdict %+v, want ready with facts", v)
		}
	}
	for key, want := range map[string]provider.Reason{"pool": provider.PoolNotFound, "network": provider.NetworkNotFound} {
		for name := range options["host"].(map[string]any) {
			block := options["host"].(map[string]any)[name].(map[string]any)
			for _, value := range []string{"none", "bridge:none0"} {
				before := block[key]
				block[key] = value
				for _, v := range realProvider(t, options, "contract", "").Check(t.Context()) {
					if v.Target == name && v.Reason != want {
						t.Errorf("%s %s: verdict %+v, want %s", key, value, v, want)
					}
				}
				block[key] = before
			}
		}
	}
}

// A sparse upload arrives byte for byte and occupies what its data does.
func TestRealUpload(t *testing.T) {
	p := realProvider(t, realOptions(t, "bios"), "contract", t.TempDir())
	for _, h := range p.hosts {
		target, ctx := pool{h}, context.WithoutCancel(t.Context())
		data := make([]byte, 300<<10)
		if _, err := rand.Read(data); err != nil {
			t.Fatal(err)
		}
		content := bytes.Join([][]byte{make([]byte, 8<<20), data, make([]byte, 16<<20), data, make([]byte, 8<<20)}, nil)
		document, err := domain.Volume{Name: "egress-test-upload"}.XML()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := h.DeleteVolume(ctx, h.hostOptions.Pool, "egress-test-upload"); err != nil {
				t.Error(err)
			}
		})
		if err := h.DeleteVolume(ctx, h.hostOptions.Pool, "egress-test-upload"); err != nil {
			t.Fatal(err)
		}
		if err := h.CreateVolume(ctx, h.hostOptions.Pool, document); err != nil {
			t.Fatal(err)
		}
		if err := target.Upload(ctx, "egress-test-upload", bytes.NewReader(content)); err != nil {
			t.Fatal(err)
		}
		got, err := h.ReadVolume(ctx, h.hostOptions.Pool, "egress-test-upload", 0, int64(len(content)))
		if err != nil || !bytes.Equal(got, content) {
			t.Errorf("read back %d bytes, %v, want the %d that were sent", len(got), err, len(content))
		}
		v, err := target.Lookup(ctx, "egress-test-upload")
		if err != nil || v.Allocation > 4<<20 {
			t.Errorf("%d bytes are occupied, %v, want those of the data (%d)", v.Allocation, err, 2*len(data))
		}
	}
}
