package kvm

import (
	"context"
	"errors"
	"time"

	"github.com/egress-proxies/egress/provider"
	"github.com/egress-proxies/egress/provider/kvm/domain"
	"github.com/egress-proxies/egress/provider/kvm/virt"
)

// Delete removes a machine and its volumes, by name, also when the domain is
// gone. A host that is no longer configured can't be asked and needs not be:
// whoever removed it from the configuration decided about what runs there.
func (p *Provider) Delete(ctx context.Context, ref provider.Ref) error {
	if err := provider.CheckName(ref.Name); err != nil {
		return err
	}
	unlock, err := p.names.Lock(ctx, ref.Name)
	if err != nil {
		return err
	}
	defer unlock()
	if ref.Zone != "" {
		h, err := p.host(ref.Zone)
		if err != nil {
			p.env.Logger.Warn("instance is left on a host that is not configured any more", "instance", ref.String())
			return nil
		}
		if err := p.remove(ctx, h, ref.Name); err != nil {
			return err
		}
		p.placements.remove(ref.Name)
		return nil
	}
	errs := make([]error, len(p.hosts))
	p.each(func(i int, h *host) { errs[i] = p.remove(ctx, h, ref.Name) })
	if err := errors.Join(errs...); err != nil {
		return err
	}
	p.placements.remove(ref.Name)
	return nil
}

// remove takes a machine off one host.
func (p *Provider) remove(ctx context.Context, h *host, name string) error {
	d, err := h.LookupDomain(ctx, name)
	switch {
	case err == nil:
		if err := p.removeDomain(ctx, h, d); err != nil {
			return err
		}
	case !errors.Is(err, provider.ErrNotFound):
		return err
	}
	for _, kind := range domain.Kinds {
		if err := h.DeleteVolume(ctx, h.hostOptions.Pool, domain.VolumeName(p.env.Cluster, name, kind)); err != nil {
			return err
		}
	}
	return nil
}

// removeDomain undefines before the files go, so that a domain that exists is
// complete; what is left of the files after a cut is found by List.
func (p *Provider) removeDomain(ctx context.Context, h *host, d virt.Domain) error {
	if _, err := p.owned(ctx, h, d); err != nil {
		if errors.Is(err, provider.ErrNotFound) {
			return nil // it went meanwhile
		}
		return err
	}
	if err := h.DestroyDomain(ctx, d); err != nil {
		return err
	}
	return h.UndefineDomain(ctx, d)
}

// Stop asks the guest to shut down. Gone and off are success.
func (p *Provider) Stop(ctx context.Context, ref provider.Ref, _ string) error {
	if err := provider.CheckName(ref.Name); err != nil {
		return err
	}
	h, d, err := p.find(ctx, ref)
	if errors.Is(err, provider.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	if _, err := p.owned(ctx, h, d); err != nil {
		return ignoreGone(err)
	}
	state, err := h.DomainState(ctx, d)
	if err != nil || state.Phase == virt.Off {
		return ignoreGone(err)
	}
	return ignoreGone(h.ShutdownDomain(ctx, d))
}

func ignoreGone(err error) error {
	if errors.Is(err, provider.ErrNotFound) {
		return nil
	}
	return err
}

// Stats reads the counters of a machine.
func (p *Provider) Stats(ctx context.Context, ref provider.Ref) (provider.Stats, error) {
	h, d, err := p.find(ctx, ref)
	if err != nil {
		return provider.Stats{}, err
	}
	usage, err := h.DomainUsage(ctx, d)
	if err != nil {
		return provider.Stats{}, err
	}
	memory := usage.ResidentBytes
	if memory == 0 {
		memory = usage.MemoryBytes
	}
	return provider.Stats{At: time.Now(), CPUTime: usage.CPUTime, MemoryBytes: memory}, nil
}
