package e2e_test

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"
	"time"
)

// uploadMiB is the size of the image that is sent.
const uploadMiB = 256

// BenchmarkUpload is an image's way into a pool over SSH.
func BenchmarkUpload(b *testing.B) { measured(b, "TestUploadAgainstVirshAndSCP") }

// TestUploadAgainstVirshAndSCP sends data by turns through the provider, through
// virsh, and with scp, to one and the same SSH server.
func TestUploadAgainstVirshAndSCP(t *testing.T) {
	rounds := measuring(t)
	h := hypervisor(t)
	h.pool("default")
	h.virsh("pool-start", "default")
	binary := h.dir + "/kvm.test"
	// Without the race detector, which takes most of the time.
	out, err := exec.CommandContext(t.Context(), "go", "test", "-c", "-o", binary, "../provider/kvm").CombinedOutput()
	if err != nil {
		t.Fatalf("build the tests of provider/kvm: %v\n%s", err, out)
	}
	data := make([]byte, uploadMiB<<20)
	_, _ = rand.Read(data) // It never fails.
	if err := os.WriteFile(filepath.Join(h.dir, "data"), data, 0o600); err != nil {
		t.Fatal(err)
	}
	var dense, sparse, virsh, scp []time.Duration
	for range rounds {
		d, s := h.uploads(binary)
		dense, sparse = append(dense, d), append(sparse, s)
		virsh = append(virsh, h.virshUpload())
		scp = append(scp, h.scp())
	}
	figures := map[string]float64{
		"dense-s": median(dense), "sparse-s": median(sparse), "virsh-s": median(virsh), "scp-s": median(scp),
		"dense/fastest": median(dense) / min(median(virsh), median(scp)),
		"sparse/dense":  median(sparse) / median(dense),
	}
	tell(t, figures)
	if figures["dense/fastest"] > 3 || figures["sparse/dense"] > 0.5 {
		t.Error("far from what it should be")
	}
}

// uploads runs the provider's own benchmark once, and gives its times for data
// and for an image of which a sixteenth is data.
func (h *libvirtHost) uploads(binary string) (dense, sparse time.Duration) {
	h.t.Helper()
	hosts, err := json.Marshal(map[string]any{"a": map[string]any{
		"address": "ssh://root@" + h.SSH, "socket": h.Socket, "key_file": h.Key, "known_hosts_file": h.KnownHosts,
	}})
	if err != nil {
		h.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, binary, "-test.run", "^$", "-test.bench", "RealUpload", "-test.benchtime", "1x")
	cmd.Dir = h.dir
	cmd.Env = append(os.Environ(), "EGRESS_KVM_HOSTS="+string(hosts))
	out, err := cmd.CombinedOutput()
	if err != nil {
		h.t.Fatalf("%v\n%s", err, out)
	}
	took := func(kind string) time.Duration {
		match := regexp.MustCompile(`Upload/` + kind + `\S*\s+1\s+(\d+) ns/op`).FindSubmatch(out)
		if match == nil {
			h.t.Fatalf("no figure of %s in %s", kind, out)
		}
		ns, err := strconv.ParseInt(string(match[1]), 10, 64)
		if err != nil {
			h.t.Fatal(err)
		}
		return time.Duration(ns)
	}
	return took("dense"), took("sparse")
}

func (h *libvirtHost) virshUpload() time.Duration {
	h.t.Helper()
	h.virsh("vol-create-as", "default", "by-virsh", fmt.Sprintf("%dMiB", uploadMiB), "--format", "raw", "--allocation", "0")
	began := time.Now()
	h.must("virsh", "-q", "-c", fmt.Sprintf("qemu+ssh://root@%s/system?socket=%s&keyfile=%s&no_verify=1", h.SSH, h.Socket, h.Key),
		"vol-upload", "--pool", "default", "by-virsh", filepath.Join(h.dir, "data"))
	took := time.Since(began)
	h.virsh("vol-delete", "--pool", "default", "by-virsh")
	return took
}

func (h *libvirtHost) scp() time.Duration {
	h.t.Helper()
	_, port, err := net.SplitHostPort(h.SSH)
	if err != nil {
		h.t.Fatal(err)
	}
	copied := filepath.Join(h.dir, "pools", "default", "by-scp")
	began := time.Now()
	h.must("scp", "-O", "-q", "-P", port, "-i", h.Key, "-o", "UserKnownHostsFile="+h.KnownHosts, "data", "root@127.0.0.1:"+copied)
	took := time.Since(began)
	if err := os.Remove(copied); err != nil {
		h.t.Fatal(err)
	}
	return took
}
