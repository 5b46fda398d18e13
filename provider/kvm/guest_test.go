package kvm

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/egress-proxies/egress/provider"
)

// guestImage is the path of a bootable image with the guest agent in it.
const guestImage = "EGRESS_KVM_GUEST"

// A guest from its start to its end: the seed is consumed, the address found,
// commands run in it, its console is read, and the power button ends it.
func TestRealGuest(t *testing.T) {
	path := os.Getenv(guestImage)
	if path == "" {
		t.Skipf("%s is not set: run by e2e/hypervisor", guestImage)
	}
	for _, firmware := range []string{"bios", "uefi"} {
		t.Run(firmware, func(t *testing.T) {
			options := realOptions(t, firmware)
			options["image"].(map[string]any)["test"].(map[string]any)["url"] = path
			options["machine_type"].(map[string]any)["small"].(map[string]any)["memory_mib"] = 256
			runGuest(t, realProvider(t, options, "contract", t.TempDir()), firmware)
		})
	}
}

func runGuest(t *testing.T, p *Provider, task string) {
	t.Helper()
	s := named(t, task)
	s.UserData = []byte("#cloud-config\nwrite_files:\n  - path: /run/marker\n    content: consumed\n")
	begin := time.Now()
	i := create(t, p, s)
	created := time.Since(begin)
	t.Cleanup(func() {
		if err := p.Delete(context.WithoutCancel(t.Context()), provider.Ref{Name: s.Name}); err != nil {
			t.Error(err)
		}
	})
	updates, err := p.Watch(t.Context(), i.Ref)
	if err != nil {
		t.Fatal(err)
	}
	running := next(t, updates, provider.Running)
	t.Logf("created in %s, address %s after %s", created.Round(time.Millisecond), running.Address, time.Since(begin).Round(time.Millisecond))
	var out, errs strings.Builder
	exit, err := p.Exec(t.Context(), i.Ref, provider.ExecRequest{
		Command: []string{"sh", "-c", "cat /run/marker; cat; echo bad >&2; exit 7"}, Stdin: strings.NewReader(" input"), Stdout: &out, Stderr: &errs,
	})
	if err != nil || exit.Code != 7 || strings.TrimSpace(out.String()) != "consumed input" || errs.String() != "bad\n" {
		t.Errorf("exec: %+v, %v, out %q, err %q", exit, err, out.String(), errs.String())
	}
	reader, err := p.Console(t.Context(), i.Ref, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	b := make([]byte, 64)
	if n, err := reader.Read(b); err != nil || n == 0 {
		t.Errorf("console: %d bytes, %v", n, err)
	}
	if err := p.Stop(t.Context(), i.Ref, ""); err != nil {
		t.Fatal(err)
	}
	ended := next(t, updates, provider.Stopped)
	if ended.Exit == nil || *ended.Exit != (provider.Exit{}) || !strings.Contains(ended.Reason, "shut down") {
		t.Errorf("ended with %+v (%s), want a clean shutdown", ended.Exit, ended.Reason)
	}
	if err := p.Delete(t.Context(), i.Ref); err != nil {
		t.Error(err)
	}
}

// next waits for a state.
func next(t *testing.T, updates <-chan provider.Instance, state provider.State) provider.Instance {
	t.Helper()
	timeout := time.After(2 * time.Minute)
	for {
		select {
		case i, ok := <-updates:
			if !ok {
				t.Fatalf("the watch ended before %s", state)
			}
			if i.State == state {
				return i
			}
		case <-timeout:
			t.Fatalf("no %s within two minutes", state)
		}
	}
}
