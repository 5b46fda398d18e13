// Package process runs egress proxies as processes of the Nomad node: the
// binary's own forward proxy, or any command. It needs no hypervisor and no
// account anywhere.
//
// Each instance has a directory in Env.StateDir, and a supervisor of its own
// that outlives the plugin; what is known of an instance is what its directory
// says, so a plugin that was restarted knows as much as one that was not.
package process

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/egress-proxies/egress/provider"
	"github.com/egress-proxies/egress/provider/process/forward"
	"github.com/egress-proxies/egress/provider/process/supervise"

	_ "github.com/egress-proxies/egress/provider/process/early" // the verbs that New's instances run as
)

// Type is the type of this provider in a provider block.
const Type = "process"

// Zone is the only place that this provider knows.
const Zone = "local"

// Provider runs processes on this node.
type Provider struct {
	name    string
	cluster string
	dir     string
	log     hclog.Logger
	options options
	limits  forward.Config

	mu      sync.Mutex    // guards what follows
	changed chan struct{} // closed and replaced when Stop was called
}

var (
	_ provider.Provider    = (*Provider)(nil)
	_ provider.Validator   = (*Provider)(nil)
	_ provider.Stopper     = (*Provider)(nil)
	_ provider.Signaler    = (*Provider)(nil)
	_ provider.Watcher     = (*Provider)(nil)
	_ provider.Console     = (*Provider)(nil)
	_ provider.StatsReader = (*Provider)(nil)
	_ provider.Checker     = (*Provider)(nil)
)

// New is the provider.Factory of type "process".
func New(config provider.Config, env provider.Env) (provider.Provider, error) {
	decoded, limits, err := decodeOptions(config.Options)
	if err != nil {
		return nil, err
	}
	if !filepath.IsAbs(env.StateDir) {
		return nil, fmt.Errorf("state directory %q: want an absolute path", env.StateDir)
	}
	log := env.Logger
	if log == nil {
		log = hclog.NewNullLogger()
	}
	return &Provider{
		name:    config.Name,
		cluster: env.Cluster,
		dir:     filepath.Clean(env.StateDir),
		log:     log,
		options: decoded,
		limits:  limits,
		changed: make(chan struct{}),
	}, nil
}

// meta is what the provider keeps in a plan for itself.
type meta struct {
	Labels    provider.Labels `json:"labels"`
	Address   string          `json:"address"`
	Port      int             `json:"port"`
	CreatedAt time.Time       `json:"created_at"`
}

// Get reads the state of one instance from its directory.
func (p *Provider) Get(ctx context.Context, ref provider.Ref) (provider.Instance, error) {
	dir, err := p.find(ctx, ref)
	if err != nil {
		return provider.Instance{}, err
	}
	snapshot, err := supervise.Inspect(dir)
	if err != nil {
		return provider.Instance{}, provider.Transientf("read the state of %s: %w", ref.Name, err)
	}
	if snapshot.Phase == supervise.Absent || snapshot.Phase == supervise.Partial {
		return provider.Instance{}, provider.NotFoundf("no process instance %s on this node", ref.Name)
	}
	return p.instance(ref.Name, snapshot)
}

// find checks a ref and gives the instance's directory, which need not exist.
func (p *Provider) find(ctx context.Context, ref provider.Ref) (string, error) {
	if err := ctx.Err(); err != nil {
		return "", err
	}
	if err := provider.CheckName(ref.Name); err != nil {
		return "", err
	}
	if ref.Zone != "" && ref.Zone != Zone {
		return "", provider.Permanentf("zone %q: the process provider knows only %q", ref.Zone, Zone)
	}
	return filepath.Join(p.dir, ref.Name), nil
}

// List reports every instance and every half-made one in the state directory.
func (p *Provider) List(ctx context.Context) ([]provider.Instance, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(p.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, provider.Transientf("list the instances: %w", err)
	}
	var instances []provider.Instance
	for _, entry := range entries {
		if !entry.IsDir() || provider.CheckName(entry.Name()) != nil {
			continue
		}
		instance, err := p.listed(entry.Name())
		if errors.Is(err, provider.ErrNotFound) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if instance.Labels.Cluster == p.cluster {
			instances = append(instances, instance)
		}
	}
	return instances, nil
}

func (p *Provider) listed(name string) (provider.Instance, error) {
	dir := filepath.Join(p.dir, name)
	snapshot, err := supervise.Inspect(dir)
	if err != nil {
		// What can't be read is listed as such: skipping it would hide it for
		// good, failing would hide all the others.
		p.log.Warn("an instance's records can't be read", "instance", name, "error", err)
		snapshot = supervise.Snapshot{Phase: supervise.Partial}
	}
	switch snapshot.Phase {
	case supervise.Absent:
		return provider.Instance{}, provider.NotFoundf("no process instance %s on this node", name)
	case supervise.Partial:
		return p.leftover(name, dir, snapshot), nil
	default:
		return p.instance(name, snapshot)
	}
}

// leftover describes a directory in which nothing was started. The state
// directory is this cluster's own, so a directory without labels is too.
func (p *Provider) leftover(name, dir string, snapshot supervise.Snapshot) provider.Instance {
	instance := provider.Instance{
		Ref:    provider.Ref{Name: name, Zone: Zone},
		State:  provider.Leftover,
		Reason: "its start was cut off before a process ran",
		Labels: provider.Labels{Cluster: p.cluster},
		Pieces: []string{"directory " + dir},
	}
	if m, err := decodeMeta(snapshot.Plan); err == nil && snapshot.Planned {
		instance.Labels, instance.CreatedAt = m.Labels, m.CreatedAt
	} else if info, err := os.Stat(dir); err == nil {
		instance.CreatedAt = info.ModTime()
	}
	return instance
}

// Delete ends the instance by force and removes its directory.
func (p *Provider) Delete(ctx context.Context, ref provider.Ref) error {
	dir, err := p.find(ctx, ref)
	if err != nil {
		return err
	}
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	unlock, err := p.lock(ctx, ref.Name)
	if err != nil {
		return err
	}
	defer unlock()
	if err := supervise.Destroy(ctx, dir); err != nil {
		return classify("delete "+ref.Name, err)
	}
	return nil
}

// classify gives an error of the file system or of a start its class.
func classify(doing string, err error) error {
	switch {
	case provider.IsCanceled(err):
		return err
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return provider.Quotaf("%s: the disk is full: %w", doing, err)
	case errors.Is(err, syscall.ENOMEM), errors.Is(err, syscall.EAGAIN), errors.Is(err, syscall.EMFILE), errors.Is(err, syscall.ENFILE):
		return provider.Quotaf("%s: the node has no memory, processes or descriptors left: %w", doing, err)
	case errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.EROFS), errors.Is(err, exec.ErrNotFound):
		return provider.Permanentf("%s: %w", doing, err)
	default:
		return provider.Transientf("%s: %w", doing, err)
	}
}

// parsePrefixes reads networks, of which a single address is one.
func parsePrefixes(key string, texts []string) ([]netip.Prefix, error) {
	var problems []error
	prefixes := make([]netip.Prefix, 0, len(texts))
	for _, text := range texts {
		prefix, err := netip.ParsePrefix(text)
		if err != nil {
			addr, addrErr := netip.ParseAddr(text)
			if addrErr != nil || addr.Zone() != "" {
				problems = append(problems, fmt.Errorf("%s: %q: want a network such as 10.0.0.0/8, or an address", key, text))
				continue
			}
			prefix = netip.PrefixFrom(addr, addr.BitLen())
		}
		if prefix.Addr().Is4In6() {
			problems = append(problems, fmt.Errorf("%s: %q: want it as IPv4", key, text))
			continue
		}
		prefixes = append(prefixes, prefix.Masked())
	}
	return prefixes, errors.Join(problems...)
}
