package kvm

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/egress-proxies/egress/provider"
	"github.com/egress-proxies/egress/provider/kvm/domain"
	"github.com/egress-proxies/egress/provider/kvm/virt"
)

// atOnce bounds the calls of one listing to one host: libvirtd works on five of
// a client's at a time.
const atOnce = 5

// List asks every host; one that can't be asked fails the list. It costs two
// calls for a host and two for each of our machines, however many others run
// there.
func (p *Provider) List(ctx context.Context) ([]provider.Instance, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	lists := make([][]provider.Instance, len(p.hosts))
	errs := make([]error, len(p.hosts))
	p.each(func(i int, h *host) { lists[i], errs[i] = p.listOn(ctx, h) })
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return slices.Concat(lists...), nil
}

func (p *Provider) listOn(ctx context.Context, h *host) ([]provider.Instance, error) {
	// Volumes first: a machine that is being removed meanwhile must not look
	// like a leftover, nor one that is being made be missed.
	volumes, err := h.ListVolumes(ctx, h.hostOptions.Pool)
	if err != nil {
		return nil, err
	}
	all, err := h.ListDomains(ctx)
	if err != nil {
		return nil, err
	}
	named := make(map[string]bool)
	var candidates []virt.Domain
	for _, d := range all {
		named[d.Name] = true
		if strings.HasPrefix(d.Name, provider.NamePrefix) {
			candidates = append(candidates, d)
		}
	}
	found, err := p.describeAll(ctx, h, candidates)
	if err != nil {
		return nil, err
	}
	pieces := make(map[string][]string)
	for _, volume := range volumes {
		cluster, name, _, ours := domain.ParseVolumeName(volume)
		if ours && cluster == p.env.Cluster && !named[name] {
			pieces[name] = append(pieces[name], "volume "+h.hostOptions.Pool+"/"+volume)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(pieces)) {
		created, err := p.newest(ctx, h, name)
		if err != nil {
			return nil, err
		}
		found = append(found, provider.Instance{
			Ref:       provider.Ref{Name: name, Zone: h.name},
			State:     provider.Leftover,
			Reason:    "volumes without a machine",
			Labels:    provider.Labels{Cluster: p.env.Cluster, CreatedAt: created},
			CreatedAt: created,
			Pieces:    pieces[name],
		})
	}
	return found, nil
}

// newest is when the last of an instance's volumes was written: they may belong
// to a machine that is being made just now.
func (p *Provider) newest(ctx context.Context, h *host, name string) (time.Time, error) {
	var newest time.Time
	for _, kind := range domain.Kinds {
		v, err := h.Volume(ctx, h.hostOptions.Pool, domain.VolumeName(p.env.Cluster, name, kind))
		if err != nil && !errors.Is(err, provider.ErrNotFound) {
			return time.Time{}, err
		}
		if v.ModifiedAt.After(newest) {
			newest = v.ModifiedAt
		}
	}
	return newest, nil
}

// describeAll describes those of the machines that are ours. Addresses are left
// out: they would cost up to three calls for each.
func (p *Provider) describeAll(ctx context.Context, h *host, candidates []virt.Domain) ([]provider.Instance, error) {
	slots := make([]*provider.Instance, len(candidates))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(atOnce)
	for i, d := range candidates {
		group.Go(func() error {
			document, err := h.Metadata(ctx, d, domain.Namespace)
			if err != nil {
				return ignoreGone(err)
			}
			meta, managed, err := domain.ReadMetadata(document)
			if err != nil || !managed || meta.Labels.Cluster != p.env.Cluster {
				return err
			}
			state, err := h.DomainState(ctx, d)
			if err != nil {
				return ignoreGone(err)
			}
			slots[i] = &provider.Instance{
				Ref: provider.Ref{Name: d.Name, Zone: h.name}, ID: d.ID(), State: listed(state.Phase), Reason: state.Reason,
				Port: meta.Port, Labels: meta.Labels, CreatedAt: meta.Labels.CreatedAt,
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	var found []provider.Instance
	for _, instance := range slots {
		if instance != nil {
			found = append(found, *instance)
		}
	}
	return found, nil
}

func listed(phase virt.Phase) provider.State {
	switch phase {
	case virt.Active:
		return provider.Provisioning
	case virt.ShuttingDown:
		return provider.Stopping
	case virt.Off:
		return provider.Stopped
	default:
		return provider.Unknown
	}
}
