package kvm

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/egress-proxies/egress/provider"
	"github.com/egress-proxies/egress/provider/kvm/domain"
	"github.com/egress-proxies/egress/provider/kvm/virt"
)

// brokenFor is how long KVM is not tried again on a host where it failed. Each
// try costs a start about a second; a person who repaired the host waits no
// longer than this for it to be used.
const brokenFor = 10 * time.Minute

// brokenKVM remembers the hosts whose KVM is there and does not work: libvirt
// offers it, since it only looks whether /dev/kvm opens, and QEMU fails when it
// makes a processor. It is remembered in files, so that `egress check` tells
// what the plugin's starts have met.
type brokenKVM struct {
	dir string

	mu   sync.Mutex          // guards seen
	seen map[string]failedAt // by host; used when there is no directory
}

type failedAt struct {
	why string
	at  time.Time
}

func (b *brokenKVM) path(host string) string { return filepath.Join(b.dir, "kvm-broken", host) }

// last is what QEMU said on the host when KVM failed; empty when it never did, or
// has worked since. lately is false when it may be tried again.
func (b *brokenKVM) last(host string) (why string, lately bool) {
	var last failedAt
	if b.dir == "" {
		b.mu.Lock()
		last = b.seen[host]
		b.mu.Unlock()
	} else if info, err := os.Stat(b.path(host)); err == nil {
		content, _ := os.ReadFile(b.path(host))
		last = failedAt{string(content), info.ModTime()}
	}
	return strings.TrimSpace(last.why), last.why != "" && time.Since(last.at) < brokenFor
}

// note remembers a failure. What can't be written is met again by the next start.
func (b *brokenKVM) note(host, why string) error {
	if b.dir == "" {
		b.mu.Lock()
		defer b.mu.Unlock()
		if b.seen == nil {
			b.seen = make(map[string]failedAt)
		}
		b.seen[host] = failedAt{why, time.Now()}
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(b.path(host)), 0o700); err != nil {
		return err
	}
	if err := os.WriteFile(b.path(host)+".new", []byte(why), 0o600); err != nil {
		return err
	}
	return os.Rename(b.path(host)+".new", b.path(host))
}

// forget is called after a start under KVM.
func (b *brokenKVM) forget(host string) {
	if b.dir != "" {
		_ = os.Remove(b.path(host)) // it lapses by itself
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.seen, host)
}

// virtType is the configured one, or the best that there is; avoid says whether
// that may be KVM.
func (h *host) virtType(abilities virt.Abilities, avoid bool) (string, error) {
	want := h.VirtType
	if want == "auto" {
		want = "qemu"
		if abilities.Has("kvm") && !avoid {
			want = "kvm"
		}
	}
	if !abilities.Has(want) {
		return "", provider.Permanentf("host %s: virt_type %s is not available: are the modules kvm_intel or kvm_amd loaded and QEMU installed? It has %v", h.name, want, abilities.Types)
	}
	return want, nil
}

// boot defines and starts a machine. Where KVM turns out not to work and was
// not demanded, the machine is emulated.
func (p *Provider) boot(ctx context.Context, h *host, machine domain.Machine) (virt.Domain, error) {
	provider.Report(ctx, "starting the machine on %s", h.name)
	d, err := h.launch(ctx, machine)
	if machine.VirtType != "kvm" {
		return d, err
	}
	if err == nil {
		p.broken.forget(h.name)
		return d, nil
	}
	why := virt.KVMFailure(err)
	if why == "" {
		return d, err
	}
	p.env.Logger.Warn("KVM does not work on a host", "host", h.name, "virt_type", h.VirtType, "error", err)
	if err := p.broken.note(h.name, why); err != nil {
		p.env.Logger.Warn("could not remember that KVM does not work", "host", h.name, "error", err)
	}
	if h.VirtType == "kvm" {
		return d, provider.Permanentf("%w: set virt_type = \"auto\" for emulation while KVM does not work there, or \"qemu\"", err)
	}
	provider.Notice(ctx, "KVM does not work on %s (%s): the machine is emulated, which is slow", h.name, why)
	if err := h.UndefineDomain(ctx, d); err != nil {
		return d, err
	}
	machine.VirtType, machine.CPUMode = "qemu", domain.Mode("qemu", h.CPUMode)
	return h.launch(ctx, machine)
}

// launch defines and starts.
func (h *host) launch(ctx context.Context, machine domain.Machine) (virt.Domain, error) {
	document, err := machine.XML()
	if err != nil {
		return virt.Domain{}, err
	}
	d, err := h.DefineDomain(ctx, document)
	if err != nil {
		return d, err
	}
	return d, h.StartDomain(ctx, d)
}
