package kvm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/egress-proxies/egress/provider"
	"github.com/egress-proxies/egress/provider/kvm/domain"
	"github.com/egress-proxies/egress/provider/kvm/image"
	"github.com/egress-proxies/egress/provider/kvm/seed"
	"github.com/egress-proxies/egress/provider/kvm/virt"
)

// cleanupTimeout bounds the removal of what a failed Create made.
const cleanupTimeout = 30 * time.Second

// Create makes a machine, or adopts the one that runs under the name. What an
// earlier attempt left in any other state is removed and made anew: nothing of
// it can be trusted, and only the image was expensive.
func (p *Provider) Create(ctx context.Context, spec provider.Spec) (provider.Instance, error) {
	if err := provider.CheckName(spec.Name); err != nil {
		return provider.Instance{}, err
	}
	plan, err := p.plan(spec)
	if err != nil {
		return provider.Instance{}, err
	}
	unlock, err := p.names.Lock(ctx, spec.Name)
	if err != nil {
		return provider.Instance{}, err
	}
	defer unlock()
	if plan.vendor, err = p.vendorData(); err != nil {
		return provider.Instance{}, err
	}
	adopted, found, err := p.adopt(ctx, spec)
	if found || err != nil {
		return adopted, err
	}
	hosts, done, err := p.place(ctx, plan)
	if err != nil {
		return provider.Instance{}, err
	}
	defer done()
	var refusals []error
	for _, h := range hosts {
		instance, err := p.createOn(ctx, h, plan)
		if err == nil {
			return instance, nil
		}
		var final *finalError
		if errors.As(err, &final) || ctx.Err() != nil {
			return provider.Instance{}, err
		}
		refusals = append(refusals, err)
		if len(hosts) > 1 {
			provider.Report(ctx, "%v", err)
		}
	}
	return provider.Instance{}, refused(refusals)
}

// finalError ends a Create whatever other hosts there are.
type finalError struct{ error }

// Unwrap gives the cause.
func (e *finalError) Unwrap() error { return e.error }

// adopt looks for what an earlier attempt left: on the host of the spec, on the
// one that was noted before the attempt began, or anywhere. A machine that runs
// is adopted, anything else is removed.
func (p *Provider) adopt(ctx context.Context, spec provider.Spec) (provider.Instance, bool, error) {
	noted := p.placements.read(spec.Name)
	for _, h := range p.hosts {
		if h.name != spec.Zone && h.name != noted && (spec.Zone != "" || noted != "") {
			continue
		}
		certain := h.name == spec.Zone || h.name == noted
		instance, found, err := p.adoptOn(ctx, h, spec.Name, certain)
		if found || (err != nil && certain) {
			return instance, found, err
		}
	}
	return provider.Instance{}, false, ctx.Err()
}

func (p *Provider) adoptOn(ctx context.Context, h *host, name string, clean bool) (provider.Instance, bool, error) {
	d, err := h.LookupDomain(ctx, name)
	if errors.Is(err, provider.ErrNotFound) {
		if clean {
			err = p.remove(ctx, h, name)
		} else {
			err = nil
		}
		return provider.Instance{}, false, err
	}
	if err != nil {
		return provider.Instance{}, false, err
	}
	instance, err := p.describe(ctx, h, d, true)
	if err != nil {
		return provider.Instance{}, true, err
	}
	switch instance.State {
	case provider.Running, provider.Provisioning:
		return instance, true, nil
	case provider.Unknown:
		return provider.Instance{}, true, provider.Transientf("host %s: the machine %s of an earlier attempt is %s", h.name, name, instance.Reason)
	default:
		provider.Report(ctx, "removing the %s machine of an earlier attempt on %s", instance.State, h.name)
		return provider.Instance{}, false, p.remove(ctx, h, name)
	}
}

// createOn makes a machine on one host and removes all of it on failure.
func (p *Provider) createOn(ctx context.Context, h *host, plan plan) (provider.Instance, error) {
	name := plan.spec.Name
	if err := p.placements.write(name, h.name); err != nil {
		return provider.Instance{}, err
	}
	d, err := p.make(ctx, h, plan)
	if err == nil {
		return provider.Instance{
			Ref:       provider.Ref{Name: name, Zone: h.name},
			ID:        d.ID(),
			State:     provider.Provisioning,
			Port:      plan.spec.Port,
			Labels:    plan.spec.Labels,
			CreatedAt: plan.spec.Labels.CreatedAt,
		}, nil
	}
	err = h.wrapQuota(ctx, err)
	clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
	defer cancel()
	if left := p.remove(clean, h, name); left != nil {
		// Another host must not be tried while a part of it is here.
		return provider.Instance{}, &finalError{&provider.Error{
			Class: provider.Classify(err), Err: fmt.Errorf("%w; cleaning up: %w", err, left),
		}}
	}
	p.placements.remove(name)
	return provider.Instance{}, err
}

// make goes through the steps. The domain comes after everything that it
// stands on, so that a domain that exists is complete.
func (p *Provider) make(ctx context.Context, h *host, plan plan) (virt.Domain, error) {
	none := virt.Domain{}
	if err := h.fits(ctx, plan.size); err != nil {
		return none, err
	}
	base, err := p.images.Ensure(ctx, plan.source, pool{h})
	if err != nil {
		if provider.Classify(err) == provider.ErrPermanent {
			return none, &finalError{err}
		}
		return none, err
	}
	abilities, err := h.Abilities(ctx)
	if err != nil {
		return none, err
	}
	machine, err := p.machine(h, plan, abilities)
	if err != nil {
		return none, err
	}
	provider.Report(ctx, "making the disks on %s", h.name)
	if err := p.disks(ctx, h, plan, base, &machine); err != nil {
		return none, err
	}
	machine.Metadata.Stale = h.staleLeases(ctx, plan.spec.Name)
	return p.boot(ctx, h, machine)
}

// machine is what of the definition is known before anything is made.
func (p *Provider) machine(h *host, plan plan, abilities virt.Abilities) (domain.Machine, error) {
	_, broken := p.broken.last(h.name)
	virtType, err := h.virtType(abilities, broken)
	if err != nil {
		return domain.Machine{}, err
	}
	bios := plan.source.Firmware == image.BIOS
	if !bios && !abilities.UEFI {
		return domain.Machine{}, provider.Permanentf("host %s: libvirt knows no UEFI firmware: install the package ovmf there, or set firmware = \"bios\" for the image", h.name)
	}
	return domain.Machine{
		Name:      plan.spec.Name,
		VirtType:  virtType,
		CPUMode:   domain.Mode(virtType, h.CPUMode),
		Cores:     plan.size.cores,
		MemoryMiB: plan.size.memoryMiB,
		BIOS:      bios,
		Network:   h.Network,
		Metadata:  domain.Metadata{Labels: plan.spec.Labels, Port: plan.spec.Port},
	}, nil
}

// disks makes the overlay, the seed and the console's file.
func (p *Provider) disks(ctx context.Context, h *host, plan plan, base image.Base, m *domain.Machine) error {
	var content bytes.Buffer
	err := seed.Build(&content, seed.Data{
		InstanceID:    fmt.Sprintf("%s-%d", plan.spec.Name, plan.spec.Labels.CreatedAt.Unix()),
		Hostname:      plan.spec.Name,
		UserData:      plan.spec.UserData,
		NetworkConfig: plan.spec.NetworkConfig,
		VendorData:    plan.vendor,
		GuestAgent:    p.settings.GuestAgent == nil || *p.settings.GuestAgent,
	})
	if err != nil {
		return &finalError{provider.Permanentf("%w", err)}
	}
	name := func(kind domain.Kind) string { return domain.VolumeName(p.env.Cluster, plan.spec.Name, kind) }
	overlay := domain.Volume{
		Name: name(domain.Disk), Format: "qcow2", Capacity: max(plan.size.diskMiB<<20, base.VirtualSize),
		Backing: base.Volume.Path, BackingFormat: string(base.Format),
	}
	if m.Disk, err = h.remake(ctx, overlay); err != nil {
		return err
	}
	if m.Console, err = h.remake(ctx, domain.Volume{Name: name(domain.Console)}); err != nil {
		return err
	}
	// Always anew: one that an earlier attempt left may have been cut off.
	if m.Seed, err = h.remake(ctx, domain.Volume{Name: name(domain.Seed), Capacity: int64(content.Len())}); err != nil {
		return err
	}
	return h.Upload(ctx, h.hostOptions.Pool, name(domain.Seed), &content)
}

// remake makes a volume, in place of one of the same name, and gives its path.
func (h *host) remake(ctx context.Context, v domain.Volume) (path string, err error) {
	if err := h.DeleteVolume(ctx, h.hostOptions.Pool, v.Name); err != nil {
		return "", err
	}
	document, err := v.XML()
	if err != nil {
		return "", err
	}
	if err := h.CreateVolume(ctx, h.hostOptions.Pool, document); err != nil {
		return "", err
	}
	made, err := h.Volume(ctx, h.hostOptions.Pool, v.Name)
	return made.Path, err
}
