// Package external brings endpoints that somebody else runs, such as bought
// proxies, into the same pool as one's own: they are probed, registered and
// leased like any other, and nothing is launched.
//
// An instance is one small file in Env.StateDir that says what a task asked
// for, so that a restarted plugin knows it again.
package external

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/egress-proxies/egress/provider"
)

// Type is the type of this provider in a provider block.
const Type = "external"

// Zone is the only place that this provider knows.
const Zone = "local"

// Provider remembers endpoints.
type Provider struct {
	cluster string
	dir     string
}

var (
	_ provider.Provider  = (*Provider)(nil)
	_ provider.Validator = (*Provider)(nil)
	_ provider.Checker   = (*Provider)(nil)
	_ provider.Rotator   = (*Provider)(nil)
)

// New is the provider.Factory of type "external". It has no options.
func New(config provider.Config, env provider.Env) (provider.Provider, error) {
	if err := provider.DecodeOptions(config.Options, &struct{}{}); err != nil {
		return nil, err
	}
	if !filepath.IsAbs(env.StateDir) {
		return nil, fmt.Errorf("state directory %q: want an absolute path", env.StateDir)
	}
	return &Provider{cluster: env.Cluster, dir: filepath.Clean(env.StateDir)}, nil
}

// Create records the endpoint. One that is recorded with the same endpoint
// already is left as it is; one with another is replaced.
func (p *Provider) Create(ctx context.Context, spec provider.Spec) (provider.Instance, error) {
	path, err := p.find(ctx, provider.Ref{Name: spec.Name, Zone: spec.Zone})
	if err != nil {
		return provider.Instance{}, err
	}
	if err := p.Validate(spec); err != nil {
		return provider.Instance{}, err
	}
	if known, err := read(path); err == nil && known.Host == spec.Endpoint.Host && known.Port == spec.Endpoint.Port {
		return known.instance(spec.Name), nil
	}
	made := record{
		Host: spec.Endpoint.Host, Port: spec.Endpoint.Port,
		Labels: spec.Labels, CreatedAt: time.Now().UTC(),
	}
	if err := write(path, made); err != nil {
		return provider.Instance{}, classify("record the endpoint", err)
	}
	return made.instance(spec.Name), nil
}

// Get gives Running for a recorded endpoint: whether it works is what probes
// find out.
func (p *Provider) Get(ctx context.Context, ref provider.Ref) (provider.Instance, error) {
	path, err := p.find(ctx, ref)
	if err != nil {
		return provider.Instance{}, err
	}
	known, err := read(path)
	if errors.Is(err, fs.ErrNotExist) {
		return provider.Instance{}, provider.NotFoundf("no external instance %s on this node", ref.Name)
	}
	if err != nil {
		return provider.Instance{}, classify("read the record", err)
	}
	return known.instance(ref.Name), nil
}

// Delete forgets the endpoint.
func (p *Provider) Delete(ctx context.Context, ref provider.Ref) error {
	path, err := p.find(ctx, ref)
	if err != nil {
		return err
	}
	// A Create that was killed leaves its temporary file.
	cutOff, err := filepath.Glob(filepath.Join(p.dir, temporary+ref.Name+".*"))
	if err != nil {
		return classify("remove the record", err)
	}
	for _, file := range append(cutOff, path) {
		if err := os.Remove(file); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return classify("remove the record", err)
		}
	}
	return nil
}

// List gives the recorded endpoints of this cluster.
func (p *Provider) List(ctx context.Context) ([]provider.Instance, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(p.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, classify("list the records", err)
	}
	var instances []provider.Instance
	for _, entry := range entries {
		name, ok := strings.CutSuffix(entry.Name(), extension)
		if !ok || provider.CheckName(name) != nil {
			continue
		}
		instance, err := p.listed(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue // deleted since the listing
		}
		if err != nil {
			return nil, classify("read the record of "+name, err)
		}
		if instance.Labels.Cluster == p.cluster {
			instances = append(instances, instance)
		}
	}
	return instances, nil
}

// listed reads one record. One that can't be decoded is a leftover, so that it
// neither hides nor fails the others.
func (p *Provider) listed(name string) (provider.Instance, error) {
	path := filepath.Join(p.dir, name+extension)
	known, err := read(path)
	if err == nil {
		return known.instance(name), nil
	}
	if !errors.Is(err, errRecord) {
		return provider.Instance{}, err
	}
	info, statErr := os.Stat(path)
	if statErr != nil {
		return provider.Instance{}, statErr
	}
	return provider.Instance{
		Ref:       provider.Ref{Name: name, Zone: Zone},
		State:     provider.Leftover,
		Reason:    err.Error(),
		Labels:    provider.Labels{Cluster: p.cluster},
		CreatedAt: info.ModTime(),
		Pieces:    []string{"file " + path},
	}, nil
}

// Check has nothing to ask: the endpoints themselves are probed.
func (p *Provider) Check(context.Context) []provider.Verdict {
	return []provider.Verdict{{
		Target: Zone, Ready: true, Reason: provider.Reachable,
		Message: "nothing is launched; each endpoint is probed by itself", Facts: map[string]string{},
	}}
}

// Rotate has nothing to do: whoever runs the endpoint changed its credentials,
// and the entry was changed after them.
func (p *Provider) Rotate(context.Context, provider.Ref, provider.Credentials) error { return nil }

// find checks a ref and gives the path of its record.
func (p *Provider) find(ctx context.Context, ref provider.Ref) (string, error) {
	if err := ctx.Err(); err != nil {
		return "", err
	}
	if err := provider.CheckName(ref.Name); err != nil {
		return "", err
	}
	if ref.Zone != "" && ref.Zone != Zone {
		return "", provider.Permanentf("zone %q: the external provider knows only %q", ref.Zone, Zone)
	}
	return filepath.Join(p.dir, ref.Name+extension), nil
}

func classify(doing string, err error) error {
	switch {
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return provider.Quotaf("%s: the disk is full: %w", doing, err)
	case errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.EROFS):
		return provider.Permanentf("%s: %w", doing, err)
	default:
		return provider.Transientf("%s: %w", doing, err)
	}
}
