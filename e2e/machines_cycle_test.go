package e2e_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime/pprof"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/egress-proxies/egress/e2e/cluster"
	"github.com/egress-proxies/egress/provider"
	"github.com/egress-proxies/egress/provider/kvm"
)

// baseline is what must be on a host again when its machines are gone.
type baseline struct {
	machines, volumes, images, nvram, leases, cards, sockets, sessions int
}

func (h *libvirtHost) baseline() (b baseline) {
	h.t.Helper()
	files := func(pattern string) int {
		found, err := filepath.Glob(filepath.Join(h.dir, pattern))
		if err != nil {
			h.t.Fatal(err)
		}
		return len(found)
	}
	b.machines, b.volumes, b.images = len(h.domains()), len(h.volumes()), files("pools/*/egress-base-*")
	b.nvram = files("state/var/lib/libvirt/qemu/nvram/*") + files("state/var/lib/libvirt/qemu/save/*") + files("state/var/lib/libvirt/qemu/snapshot/*")
	b.leases = len(strings.Fields(h.must("virsh", "-q", "-c", "qemu:///system?socket="+h.Socket, "net-dhcp-leases", "default")))
	b.sockets = files("state/var/lib/libvirt/qemu/domain-*") + files("state/var/lib/libvirt/qemu/channel/target/*") +
		files("state/run/libvirt/qemu/channel/*/*") + files("state/run/libvirt/qemu/*.xml")
	// The network of the host is seen from within.
	pid := strconv.Itoa(h.libvirtd.Process.Pid)
	b.cards = strings.Count(h.must("nsenter", "--target", pid, "--net", "ip", "-oneline", "link"), "\n")
	b.sessions = len(h.sessions())
	return b
}

// goroutinesOf are those that have one of the texts in their stack.
func goroutinesOf(texts ...string) (found []string) {
	var dump bytes.Buffer
	_ = pprof.Lookup("goroutine").WriteTo(&dump, 2)
	for stack := range strings.SplitSeq(dump.String(), "\n\n") {
		for _, text := range texts {
			if strings.Contains(stack, text) && !strings.Contains(stack, "goroutinesOf") {
				found = append(found, stack)
				break
			}
		}
	}
	return found
}

// twentyCycles is case 10: machines come and go, and the host is what it was; and
// so is the plugin's process.
func (h *libvirtHost) twentyCycles(t *testing.T) {
	const cycles = 20
	image := filepath.Join(t.TempDir(), "image.raw")
	if err := os.WriteFile(image, bootlessDisk(t), 0o600); err != nil {
		t.Fatal(err)
	}
	p, err := kvm.New(provider.Config{Name: "hv", Type: kvm.Type, Options: map[string]any{
		"host": map[string]any{"a": map[string]any{
			"address": "ssh://root@" + h.SSH, "socket": h.Socket, "key_file": h.Key, "known_hosts_file": h.KnownHosts,
		}},
		"image": map[string]any{
			"bios": map[string]any{"url": image, "firmware": "bios"},
			"uefi": map[string]any{"url": image},
		},
		"machine_type":         map[string]any{"small": map[string]any{"cores": 1, "memory_mib": 64}},
		"default_machine_type": "small",
	}}, provider.Env{Cluster: "cycles", Node: "node", StateDir: t.TempDir(), Logger: hclog.NewNullLogger()})
	if err != nil {
		t.Fatal(err)
	}
	cycle := func(n int) {
		firmware := "bios"
		if n%5 == 0 {
			firmware = "uefi" // which is slow to start, and leaves variables
		}
		name := provider.Name("cycles", fmt.Sprintf("a1b2c3%02d", n), "proxy")
		i, err := p.Create(t.Context(), provider.Spec{
			Name: name, Image: firmware, Port: 3128, UserData: []byte("#cloud-config\n"),
			Labels: provider.Labels{Cluster: "cycles", Alloc: fmt.Sprintf("a1b2c3%02d", n), Task: "proxy", CreatedAt: time.Now()},
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Delete(t.Context(), i.Ref); err != nil {
			t.Fatal(err)
		}
	}
	unused := h.baseline()
	cycle(0) // which brings the image and opens the connection, and both stay
	before, began := h.baseline(), time.Now()
	if before.sessions != unused.sessions+1 {
		t.Errorf("%d SSH sessions for one host, want one", before.sessions-unused.sessions)
	}
	for n := range cycles {
		cycle(n + 1)
	}
	t.Logf("a cycle takes %.2f s", time.Since(began).Seconds()/cycles)
	h.back(t, before)
	if err := p.(*kvm.Provider).Close(); err != nil {
		t.Error(err)
	}
	before.sessions = unused.sessions
	h.back(t, before)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	err = cluster.Until(ctx, "its goroutines are gone", func(context.Context) error {
		if left := goroutinesOf("provider/kvm/", "go-libvirt", "crypto/ssh"); len(left) > 0 {
			return fmt.Errorf("%d:\n%s", len(left), strings.Join(left, "\n\n"))
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// back waits until the host is at a baseline.
func (h *libvirtHost) back(t *testing.T, want baseline) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	err := cluster.Until(ctx, "the host is at its baseline", func(context.Context) error {
		if got := h.baseline(); got != want {
			return fmt.Errorf("%+v, want %+v", got, want)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}
