package kvm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/digitalocean/go-libvirt"
	"golang.org/x/sync/errgroup"

	"github.com/egress-proxies/egress/provider"
	"github.com/egress-proxies/egress/provider/kvm/domain"
	"github.com/egress-proxies/egress/provider/kvm/image"
	"github.com/egress-proxies/egress/provider/kvm/virt"
)

// pool is a host's pool as images use it.
type pool struct{ h *host }

var _ image.Target = pool{}

// String is host/pool.
func (p pool) String() string { return p.h.String() }

func (p pool) name() string { return p.h.hostOptions.Pool }

// Lookup describes one volume.
func (p pool) Lookup(ctx context.Context, name string) (image.Volume, error) {
	v, err := p.h.Volume(ctx, p.name(), name)
	return image.Volume(v), err
}

// Create makes a volume.
func (p pool) Create(ctx context.Context, v image.NewVolume) (image.Volume, error) {
	document, err := domain.Volume(v).XML()
	if err != nil {
		return image.Volume{}, err
	}
	err = p.h.CreateVolume(ctx, p.name(), document)
	if virt.Is(err, libvirt.ErrStorageVolExist) {
		return image.Volume{}, &provider.Error{Class: provider.Classify(err), Err: fmt.Errorf("%w: %w", image.ErrVolumeExists, err)}
	}
	if err != nil {
		return image.Volume{}, err
	}
	return p.Lookup(ctx, v.Name)
}

// Upload writes a volume.
func (p pool) Upload(ctx context.Context, name string, r io.Reader) error {
	return p.h.wrapQuota(ctx, p.h.Upload(ctx, p.name(), name, r))
}

// Delete removes a volume.
func (p pool) Delete(ctx context.Context, name string) error {
	return p.h.DeleteVolume(ctx, p.name(), name)
}

// List describes the volumes whose names have the prefix. For a look at all of
// them libvirt reads the directory anew: somebody may have put a disk there by
// hand that stands on an image.
func (p pool) List(ctx context.Context, prefix string) ([]image.Volume, error) {
	if prefix == "" {
		if _, err := p.h.Pool(ctx, p.name(), true); err != nil {
			return nil, err
		}
	}
	names, err := p.h.ListVolumes(ctx, p.name())
	if err != nil {
		return nil, err
	}
	slots := make([]*image.Volume, len(names))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(atOnce)
	for i, name := range names {
		if !strings.HasPrefix(name, prefix) {
			continue
		}
		group.Go(func() error {
			v, err := p.Lookup(ctx, name)
			if errors.Is(err, provider.ErrNotFound) {
				return nil // it went meanwhile
			}
			slots[i] = &v
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	var found []image.Volume
	for _, v := range slots {
		if v != nil {
			found = append(found, *v)
		}
	}
	return found, nil
}

// Targets are the pools of all hosts, for listing and pruning images.
func (p *Provider) Targets() []image.Target {
	targets := make([]image.Target, 0, len(p.hosts))
	for _, h := range p.hosts {
		targets = append(targets, pool{h})
	}
	return targets
}

// Images is the catalog of the configuration.
func (p *Provider) Images() image.Catalog { return p.settings.catalog }

// NewCache makes a cache for one who works beside the plugin, such as a command
// of a person: what the two have under way they don't take for their own.
func (p *Provider) NewCache() *image.Cache {
	return image.NewCache(image.Options{Logger: p.env.Logger})
}
