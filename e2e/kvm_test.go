package e2e_test

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// TestKVMContractOnARealDaemon runs what provider/kvm must hold on a real
// libvirtd with QEMU, once through the socket and once over SSH; the host is
// afterwards what it was before.
func TestKVMContractOnARealDaemon(t *testing.T) {
	t.Parallel()
	h := hypervisor(t)
	h.pool("default")
	h.virsh("pool-start", "default")
	before := h.baseline()
	binary := h.dir + "/kvm.test"
	h.build(binary)
	for name, host := range map[string]map[string]any{
		"socket": {"address": "unix://" + h.Socket},
		"ssh": {
			"address": "ssh://root@" + h.SSH, "socket": h.Socket, "key_file": h.Key, "known_hosts_file": h.KnownHosts,
		},
	} {
		t.Run(name, func(t *testing.T) {
			hosts, err := json.Marshal(map[string]any{"a": host})
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
			defer cancel()
			cmd := exec.CommandContext(ctx, binary, "-test.run", "^TestReal", "-test.v", "-test.timeout", "9m")
			cmd.Dir = h.dir
			cmd.Env = append(os.Environ(), "EGRESS_KVM_HOSTS="+string(hosts))
			out, err := cmd.CombinedOutput()
			if err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			t.Logf("%s", out)
			if strings.Contains(string(out), "--- SKIP") {
				t.Error("a test was skipped")
			}
		})
	}
	before.images = h.baseline().images // They stay until they are pruned.
	h.back(t, before)
	t.Run("twenty cycles", h.twentyCycles)
}

// build compiles the tests of provider/kvm, with whatever the cache has.
func (h *libvirtHost) build(binary string) {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	// From here, not from the host's directory: it is no part of the module.
	out, err := exec.CommandContext(ctx, "go", "test", "-race", "-c", "-o", binary, "../provider/kvm").CombinedOutput()
	if err != nil {
		h.t.Fatalf("build the tests of provider/kvm: %v\n%s", err, out)
	}
}
