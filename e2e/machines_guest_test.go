package e2e_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/egress-proxies/egress/e2e/cluster"
	"github.com/egress-proxies/egress/provider"
	"github.com/egress-proxies/egress/provider/kvm"
	"github.com/egress-proxies/egress/provider/kvm/domain"
)

// zipped is cloud-config that no text can be: gzip.
func zipped(t *testing.T) []byte {
	t.Helper()
	var data bytes.Buffer
	z := gzip.NewWriter(&data)
	_, err := z.Write([]byte("#cloud-config\nwrite_files:\n  - path: /run/marker\n    content: consumed\n"))
	if err == nil {
		err = z.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	return data.Bytes()
}

// archive is user-data of two parts, with what an editor would change: CRLF,
// trailing blanks, and no end of line at its end.
const archive = "MIME-Version: 1.0\r\nContent-Type: multipart/mixed; boundary=\"b\"\r\n\r\n" +
	"--b\r\nContent-Type: text/cloud-config\r\n\r\n#cloud-config\r\nhostname: ${unset} %{if} {{ v1 }} ü \t \r\n" +
	"--b\r\nContent-Type: text/x-shellscript\r\n\r\n#!/bin/sh\nprintf consumed >/run/marker\n\r\n--b--  "

// TestGuestsGetWhatTheyWereGiven is the provider alone with guests that boot,
// under both firmwares: the user-data byte for byte (case 35), from a disk that
// every kernel reads (case 43), the address of this machine and not of an
// earlier one (case 11), commands, the console, and an orderly end.
func TestGuestsGetWhatTheyWereGiven(t *testing.T) {
	t.Parallel()
	if !inside(t) {
		return
	}
	h := guestHost(t)
	p, err := kvm.New(provider.Config{Name: "hv", Type: kvm.Type, Options: map[string]any{
		"host": map[string]any{"a": map[string]any{"address": "unix://" + h.Socket}},
		"image": map[string]any{
			"bios": map[string]any{"url": os.Getenv(insideGuest), "firmware": "bios"},
			"uefi": map[string]any{"url": os.Getenv(insideGuest)},
		},
		"machine_type": map[string]any{"small": map[string]any{"cores": 1, "memory_mib": 256}},
	}}, provider.Env{Cluster: "e2e", Node: "node", StateDir: t.TempDir(), Logger: hclog.NewNullLogger()})
	if err != nil {
		t.Fatal(err)
	}
	hv := p.(*kvm.Provider)
	defer func() {
		if err := hv.Close(); err != nil {
			t.Error(err)
		}
	}()
	h.oldLease("bios", "10.77.3.7")
	t.Run("guests", func(t *testing.T) {
		for firmware, userData := range map[string][]byte{"bios": zipped(t), "uefi": []byte(archive)} {
			t.Run(firmware, func(t *testing.T) {
				t.Parallel()
				g := launchGuest(t, h, hv, firmware, userData)
				g.seed(userData)
				g.commands()
				g.console()
				g.ends()
			})
		}
	})
	if err := h.holds(nil, nil); err != nil {
		t.Error(err)
	}
	if left, _ := filepath.Glob(filepath.Join(h.dir, "state/var/lib/libvirt/qemu/nvram/*")); len(left) != 0 {
		t.Errorf("left behind: %q", left)
	}
}

// guestHost is a hypervisor whose libvirt network gives addresses.
func guestHost(t *testing.T) *libvirtHost {
	t.Helper()
	under, err := os.MkdirTemp("", "egress-e2e-vm-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(under) })
	h := newLibvirtHost(t, under)
	t.Cleanup(h.unmount)
	h.pool("default")
	h.virsh("pool-start", "default")
	h.network(`<network><name>default</name><forward mode="open"/><bridge name="egbr3"/>
<ip address="10.77.3.1" netmask="255.255.255.0"><dhcp><range start="10.77.3.50" end="10.77.3.99"/></dhcp></ip></network>`)
	return h
}

func guestName(firmware string) string { return provider.Name("e2e", "a1b2c3d4", firmware) }

// oldLease is what an earlier machine of the same MAC has left in libvirt's
// books.
func (h *libvirtHost) oldLease(firmware, address string) {
	h.t.Helper()
	leases, err := json.Marshal([]map[string]any{{
		"ip-address": address, "mac-address": domain.MAC(guestName(firmware)), "expiry-time": 4000000000,
	}})
	if err != nil {
		h.t.Fatal(err)
	}
	h.write("state/var/lib/libvirt/dnsmasq/egbr3.status", string(leases))
	if out := h.must("virsh", "-q", "-c", "qemu:///system?socket="+h.Socket, "net-dhcp-leases", "default"); !strings.Contains(out, address) {
		h.t.Fatalf("libvirt does not know the old lease: %q", out)
	}
}

// booted is a machine that has an address.
type booted struct {
	t        *testing.T
	host     *libvirtHost
	provider *kvm.Provider
	ref      provider.Ref
	updates  <-chan provider.Instance
}

func launchGuest(t *testing.T, h *libvirtHost, p *kvm.Provider, firmware string, userData []byte) *booted {
	t.Helper()
	g := &booted{t: t, host: h, provider: p, ref: provider.Ref{Name: guestName(firmware), Zone: "a"}}
	t.Cleanup(func() {
		if err := p.Delete(context.Background(), g.ref); err != nil {
			t.Error(err)
		}
	})
	began := time.Now()
	_, err := p.Create(t.Context(), provider.Spec{
		Name: g.ref.Name, Image: firmware, MachineType: "small", Port: 3128, UserData: userData,
		Labels: provider.Labels{Cluster: "e2e", Alloc: "a1b2c3d4", Task: firmware, CreatedAt: began},
	})
	if err != nil {
		t.Fatal(err)
	}
	created := time.Since(began)
	if g.updates, err = p.Watch(t.Context(), g.ref); err != nil {
		t.Fatal(err)
	}
	running := g.state(provider.Running)
	t.Logf("created after %.1f s, has an address after %.1f s", created.Seconds(), time.Since(began).Seconds())
	given := fmt.Sprintf(" %s ", domain.MAC(g.ref.Name))
	for line := range strings.Lines(h.must("virsh", "-q", "-c", "qemu:///system?socket="+h.Socket, "net-dhcp-leases", "default")) {
		if strings.Contains(line, given) && !strings.Contains(line, "10.77.3.7/") {
			given = strings.Split(strings.Fields(line)[4], "/")[0]
		}
	}
	if running.Address != given || !slices.Equal(running.Addresses, []string{given}) {
		t.Errorf("address %s of %q, want the one that the DHCP server has given it, %s", running.Address, running.Addresses, given)
	}
	return g
}

// state waits for a state and gives the instance in it.
func (g *booted) state(want provider.State) provider.Instance {
	g.t.Helper()
	timeout := time.After(2 * patience)
	var last provider.Instance
	for {
		select {
		case i, ok := <-g.updates:
			if !ok {
				g.t.Fatalf("the watch ended in %v (%s) before %v", last.State, last.Reason, want)
			}
			if last = i; i.State == want {
				return i
			}
		case <-timeout:
			g.t.Fatalf("it is %v (%s), not %v", last.State, last.Reason, want)
		}
	}
}

func (g *booted) exec(ctx context.Context, stdin string, command ...string) (exit provider.Exit, stdout, stderr string, err error) {
	var out, errs strings.Builder
	exit, err = g.provider.Exec(ctx, g.ref, provider.ExecRequest{
		Command: command, Stdin: strings.NewReader(stdin), Stdout: &out, Stderr: &errs,
	})
	return exit, out.String(), errs.String(), err
}

// output is that of a command, which must be run.
func (g *booted) output(command ...string) string {
	g.t.Helper()
	ctx, cancel := context.WithTimeout(g.t.Context(), patience)
	defer cancel()
	_, out, _, err := g.exec(ctx, "", command...)
	if err != nil {
		g.t.Fatalf("exec of %q: %v", command, err)
	}
	return out
}

// seed is read once the guest has done what it says: an address comes earlier,
// and the agent may.
func (g *booted) seed(userData []byte) {
	g.t.Helper()
	ctx, cancel := context.WithTimeout(g.t.Context(), patience)
	defer cancel()
	err := cluster.Until(ctx, "the user-data leaves its mark", func(ctx context.Context) error {
		_, out, errs, err := g.exec(ctx, "", "cat", "/run/marker")
		if err == nil && strings.TrimSpace(out) != "consumed" {
			err = fmt.Errorf("mark %q, %s", out, errs)
		}
		return err
	})
	if err != nil {
		g.t.Fatal(err)
	}
	if got := g.output("cat", "/run/seed/user-data"); got != string(userData) {
		g.t.Errorf("the guest got the user-data %q, want %q", got, userData)
	}
	if got := g.output("grep", " /run/seed ", "/proc/mounts"); !strings.HasPrefix(got, "/dev/vd") {
		g.t.Errorf("the seed is at %q, want a virtio disk: not every cloud kernel has a driver for more", got)
	}
}

func (g *booted) commands() {
	g.t.Helper()
	ctx, cancel := context.WithTimeout(g.t.Context(), patience)
	defer cancel()
	exit, out, errs, err := g.exec(ctx, "input", "sh", "-c", "cat; echo bad >&2; exit 7")
	if err != nil || exit.Code != 7 || out != "input" || errs != "bad\n" {
		g.t.Errorf("exec: %+v, %v, out %q, err %q", exit, err, out, errs)
	}
}

func (g *booted) console() {
	g.t.Helper()
	reader, err := g.provider.Console(g.t.Context(), g.ref, 0)
	if err != nil {
		g.t.Fatal(err)
	}
	defer func() { _ = reader.Close() }()
	seen := ""
	for b := make([]byte, 4096); !strings.Contains(seen, "seed of "+g.ref.Name); {
		n, err := reader.Read(b)
		if err != nil {
			g.t.Fatalf("console: %v after %q", err, seen)
		}
		seen += string(b[:n])
	}
}

// ends asks the guest to shut down, which it does by itself.
func (g *booted) ends() {
	g.t.Helper()
	if err := g.provider.Stop(g.t.Context(), g.ref, ""); err != nil {
		g.t.Fatal(err)
	}
	ended := g.state(provider.Stopped)
	if ended.Exit == nil || *ended.Exit != (provider.Exit{}) || !strings.Contains(ended.Reason, "shut down") {
		g.t.Errorf("ended with %+v (%s), want a clean shutdown", ended.Exit, ended.Reason)
	}
	if err := g.provider.Delete(g.t.Context(), g.ref); err != nil {
		g.t.Error(err)
	}
}
