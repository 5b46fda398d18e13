package kvm

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/digitalocean/go-libvirt"

	"github.com/egress-proxies/egress/provider"
	"github.com/egress-proxies/egress/provider/kvm/dial"
	"github.com/egress-proxies/egress/provider/kvm/domain"
	"github.com/egress-proxies/egress/provider/kvm/image"
	"github.com/egress-proxies/egress/provider/kvm/virt"
)

// checking keeps checks of one host from piling up: while one waits for a hung
// daemon no other is sent.
type checking struct {
	mu    sync.Mutex // guards since
	since time.Time  // of the check under way; zero is none
}

// Check asks every host at once.
func (p *Provider) Check(ctx context.Context) []provider.Verdict {
	verdicts := make([]provider.Verdict, len(p.hosts))
	p.each(func(i int, h *host) {
		begin := time.Now()
		verdicts[i] = p.checkHost(ctx, h)
		verdicts[i].Target, verdicts[i].Latency = h.name, time.Since(begin)
	})
	return verdicts
}

// checkHost returns with ctx at the latest. What it asked may go on waiting for
// the daemon; the connection is left to those who use it.
func (p *Provider) checkHost(ctx context.Context, h *host) provider.Verdict {
	h.check.mu.Lock()
	since := h.check.since
	if since.IsZero() {
		h.check.since = time.Now()
	}
	h.check.mu.Unlock()
	if !since.IsZero() {
		return no(provider.Timeout, "an earlier check has been waiting for the host's answer since %s: does libvirtd hang?", since.Format(time.TimeOnly))
	}
	answer := make(chan provider.Verdict, 1)
	go func() { // ends with ctx, since every call does
		v := p.examine(ctx, h)
		h.check.mu.Lock()
		h.check.since = time.Time{}
		h.check.mu.Unlock()
		answer <- v
	}()
	select {
	case v := <-answer:
		return v
	case <-ctx.Done():
		return no(provider.Timeout, "the host did not answer within the check's time: does libvirtd hang, or is the network slow?")
	}
}

// examine goes from the connection to the details; the first that is wrong is
// the verdict, with what was learned until then.
func (p *Provider) examine(ctx context.Context, h *host) provider.Verdict {
	facts := make(map[string]string)
	verdict := p.judge(ctx, h, facts)
	verdict.Facts = facts
	return verdict
}

func (p *Provider) judge(ctx context.Context, h *host, facts map[string]string) provider.Verdict {
	versions, err := h.Versions(ctx)
	if err != nil {
		return failed(ctx, err)
	}
	facts["libvirt_version"], facts["hypervisor_version"], facts["hostname"] = versions.Libvirt, versions.Hypervisor, versions.Hostname
	memory, err := h.Memory(ctx)
	if err != nil {
		return failed(ctx, err)
	}
	facts["memory_total_bytes"], facts["memory_available_bytes"] = strconv.FormatUint(memory.Total, 10), strconv.FormatUint(memory.Available, 10)
	if verdict, ok := p.judgeAbilities(ctx, h, facts); !ok {
		return verdict
	}
	if verdict, ok := h.judgeNetwork(ctx); !ok {
		return verdict
	}
	verdict := h.judgePool(ctx, facts)
	if why, _ := p.broken.last(h.name); why != "" && verdict.Ready && h.VirtType == "auto" {
		verdict.Message = "ready; KVM does not work there (" + why + "): machines are emulated, which is slow"
	}
	return verdict
}

func (p *Provider) judgeAbilities(ctx context.Context, h *host, facts map[string]string) (provider.Verdict, bool) {
	abilities, err := h.Abilities(ctx)
	if err != nil {
		return failed(ctx, err), false
	}
	// Until a start under KVM works the host counts as one without: a fact that
	// changed with each try would be written to the servers each time.
	broken, lately := p.broken.last(h.name)
	virtType, err := h.virtType(abilities, broken != "")
	if err != nil {
		return no(provider.VirtualizationUnavailable, "%v", err), false
	}
	if lately && h.VirtType == "kvm" {
		return no(provider.VirtualizationUnavailable, "host %s: a machine could not be started under KVM within the last %v: %s: set virt_type = \"auto\" for emulation while KVM does not work there",
			h.name, brokenFor, broken), false
	}
	facts["virt_type"], facts["uefi"] = virtType, strconv.FormatBool(abilities.UEFI)
	if abilities.UEFI {
		return provider.Verdict{}, true
	}
	for _, name := range slices.Sorted(maps.Keys(p.settings.Images)) { // the same one is named each time
		if p.settings.Images[name].Firmware != string(image.BIOS) {
			return no(provider.FirmwareMissing, "image %s boots with UEFI, and libvirt on host %s knows no UEFI firmware: install the package ovmf there", name, h.name), false
		}
	}
	return provider.Verdict{}, true
}

func (h *host) judgeNetwork(ctx context.Context) (provider.Verdict, bool) {
	if bridge, ok := strings.CutPrefix(h.Network, domain.BridgePrefix); ok {
		exists, known, err := h.BridgeExists(ctx, bridge)
		if err != nil {
			return failed(ctx, err), false
		}
		if known && !exists {
			return no(provider.NetworkNotFound, "host %s has no bridge %s: make it, or set network to another", h.name, bridge), false
		}
		return provider.Verdict{}, true
	}
	active, err := h.NetworkActive(ctx, h.Network)
	switch {
	case virt.Is(err, libvirt.ErrNoNetwork):
		return no(provider.NetworkNotFound, "libvirt on host %s has no network %s: for a bridge of the host write network = \"%sNAME\"", h.name, h.Network, domain.BridgePrefix), false
	case err != nil:
		return failed(ctx, err), false
	case !active:
		return no(provider.NetworkNotFound, "network %s is not active: virsh net-start %s; virsh net-autostart %s", h.Network, h.Network, h.Network), false
	}
	return provider.Verdict{}, true
}

// nearlyFull is when a pool is left alone: guests that are there already still
// need to write.
func nearlyFull(pool virt.Pool) bool {
	return pool.Available < minPoolBytes || (pool.Available < pool.Capacity/20 && pool.Available < 10<<30)
}

func (h *host) judgePool(ctx context.Context, facts map[string]string) provider.Verdict {
	name := h.hostOptions.Pool
	pool, err := h.Pool(ctx, name, true)
	switch {
	case virt.Is(err, libvirt.ErrNoStoragePool):
		return no(provider.PoolNotFound, "libvirt on host %s has no pool %s: virsh pool-define-as %s dir --target /var/lib/libvirt/images", h.name, name, name)
	case err != nil:
		return failed(ctx, err)
	}
	facts["pool_state"] = "inactive"
	if !pool.Active {
		return no(provider.PoolNotActive, "pool %s is not active: virsh pool-start %s; virsh pool-autostart %s", name, name, name)
	}
	facts["pool_state"] = "running"
	facts["pool_capacity_bytes"], facts["pool_available_bytes"] = strconv.FormatUint(pool.Capacity, 10), strconv.FormatUint(pool.Available, 10)
	if pool.Path == "" {
		return no(provider.LibvirtError, "pool %s of type %s has no directory: want one of type dir, fs or netfs", name, pool.Type)
	}
	if nearlyFull(pool) {
		return no(provider.PoolNearlyFull, "pool %s has %s of %s MiB free: remove unused images with egress images prune, or make room", name, mib(pool.Available), mib(pool.Capacity))
	}
	return provider.Verdict{Ready: true, Reason: provider.Reachable, Message: "ready"}
}

// failed finds the one word for an error.
func failed(ctx context.Context, err error) provider.Verdict {
	var unreachable *dial.Error
	switch {
	case errors.As(err, &unreachable):
		return no(unreachable.Reason, "%v", err)
	case ctx.Err() != nil, errors.Is(err, context.DeadlineExceeded):
		return no(provider.Timeout, "%v", err)
	case virt.Is(err, libvirt.ErrAuthFailed), virt.Is(err, libvirt.ErrAccessDenied), virt.Is(err, libvirt.ErrOperationDenied):
		return no(provider.Forbidden, "%v: let the account manage machines: group libvirt or a polkit rule, and the socket libvirt-sock, not libvirt-sock-ro", err)
	default:
		return no(provider.LibvirtError, "%v", err)
	}
}

func no(reason provider.Reason, format string, args ...any) provider.Verdict {
	return provider.Verdict{Reason: reason, Message: fmt.Sprintf(format, args...)}
}

func mib(bytes uint64) string { return strconv.FormatUint(bytes>>20, 10) }

func itoa(n int) string { return strconv.Itoa(n) }
