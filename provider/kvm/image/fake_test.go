package image

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/egress-proxies/egress/provider"
)

// pool is a Target in memory. Its hooks, when set, come before the real thing.
type pool struct {
	name     string
	onCreate func(name string) error
	onUpload func(ctx context.Context, name string, r io.Reader) error
	onDelete func(name string) error
	onList   func() error

	mu      sync.Mutex // guards all below
	volumes map[string]*fakeVolume
	uploads int
}

type fakeVolume struct {
	content  []byte
	backing  string
	modified time.Time
}

func newPool(name string) *pool { return &pool{name: name, volumes: map[string]*fakeVolume{}} }

func (p *pool) String() string { return p.name }

func (p *pool) path(name string) string { return "/pool/" + p.name + "/" + name }

func (p *pool) volume(name string, v *fakeVolume) Volume {
	return Volume{Name: name, Path: p.path(name), Format: "raw", Capacity: int64(len(v.content)),
		Allocation: int64(len(v.content)), Backing: v.backing, ModifiedAt: v.modified}
}

func (p *pool) Lookup(_ context.Context, name string) (Volume, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if v := p.volumes[name]; v != nil {
		return p.volume(name, v), nil
	}
	return Volume{}, provider.NotFoundf("volume %s", name)
}

func (p *pool) Create(ctx context.Context, v NewVolume) (Volume, error) {
	if ctx.Err() != nil {
		return Volume{}, ctx.Err()
	}
	if p.onCreate != nil {
		if err := p.onCreate(v.Name); err != nil {
			return Volume{}, err
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.volumes[v.Name] != nil {
		return Volume{}, fmt.Errorf("%s: %w", v.Name, ErrVolumeExists)
	}
	p.volumes[v.Name] = &fakeVolume{backing: v.Backing, modified: time.Now()}
	return p.volume(v.Name, p.volumes[v.Name]), nil
}

func (p *pool) Upload(ctx context.Context, name string, r io.Reader) error {
	p.mu.Lock()
	p.uploads++
	p.mu.Unlock()
	if p.onUpload != nil {
		if err := p.onUpload(ctx, name, r); err != nil {
			return err
		}
	}
	return p.take(ctx, name, r, -1)
}

// take reads limit bytes, or all when it is negative.
func (p *pool) take(ctx context.Context, name string, r io.Reader, limit int64) error {
	buffer := make([]byte, 32<<10)
	for limit != 0 {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		n, err := r.Read(buffer)
		p.mu.Lock()
		p.volumes[name].content = append(p.volumes[name].content, buffer[:n]...)
		p.volumes[name].modified = time.Now()
		p.mu.Unlock()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		if limit > 0 {
			limit = max(0, limit-int64(n))
		}
	}
	return nil
}

func (p *pool) Delete(ctx context.Context, name string) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if p.onDelete != nil {
		if err := p.onDelete(name); err != nil {
			return err
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.volumes, name)
	return nil
}

func (p *pool) List(ctx context.Context, prefix string) ([]Volume, error) {
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if p.onList != nil {
		if err := p.onList(); err != nil {
			return nil, err
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	var found []Volume
	for name, v := range p.volumes {
		if strings.HasPrefix(name, prefix) {
			found = append(found, p.volume(name, v))
		}
	}
	return found, nil
}

// names are those of all volumes.
func (p *pool) names() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Sorted(maps.Keys(p.volumes))
}

func (p *pool) content(name string) []byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	if v := p.volumes[name]; v != nil {
		return slices.Clone(v.content)
	}
	return nil
}

func (p *pool) uploadCount() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.uploads
}

// holds fails unless the pool has just the one complete image, of this content.
func (p *pool) holds(t *testing.T, base Base, content []byte) {
	t.Helper()
	if got := p.content(base.Volume.Name); !bytes.Equal(got, content) {
		t.Errorf("%s: %d bytes arrived and differ from the %d of the image", p.name, len(got), len(content))
	}
	if names := p.names(); len(names) != 2 {
		t.Errorf("%s: want one image and its marker, got %q", p.name, names)
	}
}

// empty fails when anything was left behind.
func (p *pool) empty(t *testing.T) {
	t.Helper()
	if names := p.names(); len(names) != 0 {
		t.Errorf("%s: left behind: %q", p.name, names)
	}
}
