// Package kvm launches proxies as virtual machines on libvirt hypervisors.
//
// A machine is a qcow2 overlay on an image that the host keeps, a NoCloud seed
// that configures the guest, and a libvirt domain whose metadata holds the
// labels. Everything that belongs to one is found again by its name alone, so
// that a plugin that was killed at any step leaves nothing that the next one
// can't adopt or remove. docs/kvm.md is for those who run it.
package kvm

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/egress-proxies/egress/provider"
	"github.com/egress-proxies/egress/provider/kvm/domain"
	"github.com/egress-proxies/egress/provider/kvm/image"
	"github.com/egress-proxies/egress/provider/kvm/virt"
)

// Provider launches machines on its hosts.
type Provider struct {
	settings   settings
	env        provider.Env
	hosts      []*host // by name
	images     *image.Cache
	names      provider.NameLocks
	placements placements
	broken     brokenKVM
	placing    sync.Mutex // guards arriving of the hosts; never held over a call
}

var (
	_ provider.Provider    = (*Provider)(nil)
	_ provider.Validator   = (*Provider)(nil)
	_ provider.Stopper     = (*Provider)(nil)
	_ provider.Watcher     = (*Provider)(nil)
	_ provider.Console     = (*Provider)(nil)
	_ provider.Execer      = (*Provider)(nil)
	_ provider.StatsReader = (*Provider)(nil)
	_ provider.Checker     = (*Provider)(nil)
)

// New makes a provider of a `type = "kvm"` block. It connects to nothing.
func New(config provider.Config, env provider.Env) (provider.Provider, error) {
	settings, err := parse(config.Options)
	if err != nil {
		return nil, err
	}
	return build(settings, env, func(h hostSettings) hypervisor {
		return virt.New(virt.Options{Name: h.name, Target: h.target, Logger: env.Logger})
	}), nil
}

// build wires a provider to its hypervisors.
func build(settings settings, env provider.Env, connect func(hostSettings) hypervisor) *Provider {
	p := &Provider{
		settings:   settings,
		env:        env,
		images:     image.NewCache(image.Options{Owner: env.Cluster + "/" + env.Node, Logger: env.Logger}),
		placements: placements{dir: env.StateDir},
		broken:     brokenKVM{dir: env.StateDir},
	}
	for _, h := range settings.hosts {
		p.hosts = append(p.hosts, &host{hostSettings: h, hypervisor: connect(h)})
	}
	return p
}

// Close ends the downloads and the connections.
func (p *Provider) Close() error {
	err := p.images.Close()
	for _, h := range p.hosts {
		if closer, ok := h.hypervisor.(interface{ Close() }); ok {
			closer.Close()
		}
	}
	return err
}

// host finds a configured host. An unknown name is no missing machine: it may
// be a typo, or the host was taken out of the configuration.
func (p *Provider) host(name string) (*host, error) {
	known := make([]string, 0, len(p.hosts))
	for _, h := range p.hosts {
		if h.name == name {
			return h, nil
		}
		known = append(known, h.name)
	}
	return nil, provider.Permanentf("zone %q: no such host is configured: want one of %s", name, strings.Join(known, ", "))
}

// Get asks the host that ref names, or all of them.
func (p *Provider) Get(ctx context.Context, ref provider.Ref) (provider.Instance, error) {
	if err := provider.CheckName(ref.Name); err != nil {
		return provider.Instance{}, err
	}
	h, d, err := p.find(ctx, ref)
	if err != nil {
		return provider.Instance{}, err
	}
	return p.describe(ctx, h, d, true)
}

// find looks a machine up. A host that can't be asked is an error unless
// another one has it: "not found" must be true everywhere.
func (p *Provider) find(ctx context.Context, ref provider.Ref) (*host, virt.Domain, error) {
	if ref.Zone != "" {
		h, err := p.host(ref.Zone)
		if err != nil {
			return nil, virt.Domain{}, err
		}
		d, err := h.LookupDomain(ctx, ref.Name)
		return h, d, err
	}
	found := make([]virt.Domain, len(p.hosts))
	errs := make([]error, len(p.hosts))
	p.each(func(i int, h *host) { found[i], errs[i] = h.LookupDomain(ctx, ref.Name) })
	for i, err := range errs {
		if err == nil {
			return p.hosts[i], found[i], nil
		}
	}
	for _, err := range errs {
		if !errors.Is(err, provider.ErrNotFound) {
			return nil, virt.Domain{}, err
		}
	}
	return nil, virt.Domain{}, provider.NotFoundf("no host has a machine %s", ref.Name)
}

// each calls fn for every host at once.
func (p *Provider) each(fn func(i int, h *host)) {
	var group errgroup.Group
	for i, h := range p.hosts {
		group.Go(func() error {
			fn(i, h)
			return nil
		})
	}
	_ = group.Wait() // the functions give no error
}

// describe reads all about a machine. With addresses, it asks for them too.
func (p *Provider) describe(ctx context.Context, h *host, d virt.Domain, addresses bool) (provider.Instance, error) {
	state, err := h.DomainState(ctx, d)
	if err != nil {
		return provider.Instance{}, err
	}
	meta, err := p.owned(ctx, h, d)
	if err != nil {
		return provider.Instance{}, err
	}
	instance := provider.Instance{
		Ref:       provider.Ref{Name: d.Name, Zone: h.name},
		ID:        d.ID(),
		Reason:    state.Reason,
		Port:      meta.Port,
		Labels:    meta.Labels,
		CreatedAt: meta.Labels.CreatedAt,
	}
	switch state.Phase {
	case virt.Active:
		instance.State = provider.Provisioning
		if addresses {
			instance.Addresses = h.addresses(ctx, d, meta.Stale)
		}
		if len(instance.Addresses) > 0 {
			instance.State, instance.Address = provider.Running, instance.Addresses[0]
		}
	case virt.ShuttingDown:
		instance.State = provider.Stopping
	case virt.Off:
		instance.State, instance.Exit = provider.Stopped, exit(state.Ending)
	default: // paused, or libvirt does not know
		instance.State = provider.Unknown
	}
	return instance, nil
}

func exit(ending virt.Ending) *provider.Exit {
	const kill = 9
	switch ending {
	case virt.EndShutdown:
		return &provider.Exit{}
	case virt.EndDestroyed:
		return &provider.Exit{Signal: kill}
	case virt.EndCrashed:
		return &provider.Exit{Code: 1}
	default:
		return nil
	}
}

// owned reads a machine's metadata and refuses one that isn't ours.
func (p *Provider) owned(ctx context.Context, h *host, d virt.Domain) (domain.Metadata, error) {
	document, err := h.Metadata(ctx, d, domain.Namespace)
	if err != nil {
		return domain.Metadata{}, err
	}
	meta, managed, err := domain.ReadMetadata(document)
	if err != nil {
		return domain.Metadata{}, err
	}
	if !managed || meta.Labels.Cluster != p.env.Cluster {
		return domain.Metadata{}, provider.Permanentf(
			"host %s: the domain %s is not one of cluster %q: it is left alone; rename or remove it by hand", h.name, d.Name, p.env.Cluster)
	}
	return meta, nil
}

// wrapQuota adds what is free to an error of lacking room.
func (h *host) wrapQuota(ctx context.Context, err error) error {
	if provider.Classify(err) != provider.ErrQuotaExceeded {
		return err
	}
	room, roomErr := h.room(context.WithoutCancel(ctx))
	if roomErr != nil {
		return err
	}
	return provider.Quotaf("%w (%s)", err, room)
}

// String is for messages.
func (h *host) String() string { return fmt.Sprintf("%s/%s", h.name, h.hostOptions.Pool) }
