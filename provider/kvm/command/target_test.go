package command_test

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/egress-proxies/egress/provider"
	"github.com/egress-proxies/egress/provider/fake"
	"github.com/egress-proxies/egress/provider/kvm/image"
)

// pool is a host's pool in memory.
type pool struct {
	name string

	mu      sync.Mutex // guards all below
	volumes map[string]image.Volume
	err     error // of every call
	stuck   bool  // an upload takes one read and waits
}

func newPool(name string) *pool { return &pool{name: name, volumes: map[string]image.Volume{}} }

func (p *pool) String() string { return p.name }

func (p *pool) put(v image.Volume) {
	p.mu.Lock()
	defer p.mu.Unlock()
	v.Path = "/pool/" + v.Name
	p.volumes[v.Name] = v
}

func (p *pool) names() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Sorted(maps.Keys(p.volumes))
}

func (p *pool) fails(ctx context.Context) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return p.err
}

func (p *pool) Lookup(ctx context.Context, name string) (image.Volume, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	v, ok := p.volumes[name]
	if err := p.fails(ctx); err != nil || !ok {
		return v, fmt.Errorf("volume %s: %w", name, cmpOr(err, provider.ErrNotFound))
	}
	return v, nil
}

func cmpOr(err, other error) error {
	if err != nil {
		return err
	}
	return other
}

func (p *pool) Create(ctx context.Context, v image.NewVolume) (image.Volume, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.fails(ctx); err != nil {
		return image.Volume{}, err
	}
	p.volumes[v.Name] = image.Volume{Name: v.Name, Path: "/pool/" + v.Name, ModifiedAt: time.Now()}
	return p.volumes[v.Name], nil
}

func (p *pool) Upload(ctx context.Context, name string, r io.Reader) error {
	p.mu.Lock()
	err, stuck := p.fails(ctx), p.stuck
	p.mu.Unlock()
	if err != nil {
		return err
	}
	if stuck {
		_, _ = r.Read(make([]byte, 1024))
		<-ctx.Done()
		return ctx.Err()
	}
	n, err := io.Copy(io.Discard, r)
	p.mu.Lock()
	defer p.mu.Unlock()
	v := p.volumes[name]
	v.Allocation, v.ModifiedAt = n, time.Now()
	p.volumes[name] = v
	return err
}

func (p *pool) Delete(ctx context.Context, name string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.fails(ctx); err != nil {
		return err
	}
	delete(p.volumes, name)
	return nil
}

func (p *pool) List(ctx context.Context, prefix string) ([]image.Volume, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.fails(ctx); err != nil {
		return nil, err
	}
	var found []image.Volume
	for name, v := range p.volumes {
		if strings.HasPrefix(name, prefix) {
			found = append(found, v)
		}
	}
	return found, nil
}

// keeper is a provider over pools.
type keeper struct {
	*fake.Provider
	pools   []*pool
	catalog image.Catalog
}

func (k *keeper) Targets() (targets []image.Target) {
	for _, p := range k.pools {
		targets = append(targets, p)
	}
	return targets
}

func (k *keeper) Images() image.Catalog { return k.catalog }

func (k *keeper) NewCache() *image.Cache {
	return image.NewCache(image.Options{
		Logger: hclog.NewNullLogger(), Backoff: func(int) time.Duration { return time.Millisecond }, ReportEvery: 10 * time.Millisecond,
	})
}

// id is the digest of a test's image, as long as a SHA-256 and as in names.
func id(digit string) (declared, short string) {
	return strings.Repeat(digit, 64), strings.Repeat(digit, 32)
}

// stock puts an image into a pool, with as many disks on it.
func (p *pool) stock(t *testing.T, digit string, complete bool, age time.Duration, disks int) (volume string) {
	t.Helper()
	_, short := id(digit)
	written := time.Now().Add(-age)
	volume = image.Prefix + short + ".11111111.2222222222222222.qcow2"
	p.put(image.Volume{Name: volume, ModifiedAt: written, Allocation: 345 << 20})
	if complete {
		p.put(image.Volume{Name: volume + ".2147483648." + short + ".ready", ModifiedAt: written})
	}
	for n := range disks {
		p.put(image.Volume{Name: fmt.Sprintf("disk-%s-%d", digit, n), Backing: "/pool/" + volume, ModifiedAt: time.Now()})
	}
	return volume
}
