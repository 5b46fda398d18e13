// Package fake is an in-memory provider with failure injection at every step,
// for tests of whatever uses a provider.
package fake

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/egress-proxies/egress/provider"
)

// Options of a fake. The zero value is valid.
type Options struct {
	// World is what exists already; nil is a new one.
	World *World
	// Cluster is whose instances List reports; empty is "test".
	Cluster string
	// Zones are the places; empty is the single place "fake".
	Zones []string
	// Address of every instance; empty is 127.0.0.1.
	Address string
	// Port of every instance; 0 is the port of its Spec.
	Port int
}

// Provider keeps its instances in a World.
type Provider struct {
	world   *World
	options Options
	faults  faults

	mu        sync.Mutex // guards what follows
	names     map[string]*sync.Mutex
	zoneFacts map[string]map[string]string
}

var (
	_ provider.Provider    = (*Provider)(nil)
	_ provider.Stopper     = (*Provider)(nil)
	_ provider.Signaler    = (*Provider)(nil)
	_ provider.Rotator     = (*Provider)(nil)
	_ provider.Watcher     = (*Provider)(nil)
	_ provider.Console     = (*Provider)(nil)
	_ provider.Execer      = (*Provider)(nil)
	_ provider.StatsReader = (*Provider)(nil)
	_ provider.Checker     = (*Provider)(nil)
)

// New makes a fake.
func New(options Options) *Provider {
	if options.World == nil {
		options.World = NewWorld()
	}
	if options.Cluster == "" {
		options.Cluster = "test"
	}
	if len(options.Zones) == 0 {
		options.Zones = []string{"fake"}
	}
	if options.Address == "" {
		options.Address = "127.0.0.1"
	}
	return &Provider{
		world: options.World, options: options,
		names: make(map[string]*sync.Mutex), zoneFacts: make(map[string]map[string]string),
	}
}

// World is what exists.
func (p *Provider) World() *World { return p.world }

// lock serialises the calls that change one name.
func (p *Provider) lock(name string) (unlock func()) {
	p.mu.Lock()
	m, ok := p.names[name]
	if !ok {
		m = new(sync.Mutex)
		p.names[name] = m
	}
	p.mu.Unlock()
	m.Lock()
	return m.Unlock
}

// Create goes through CreateSteps, each of which leaves a piece.
func (p *Provider) Create(ctx context.Context, spec provider.Spec) (provider.Instance, error) {
	if err := provider.CheckName(spec.Name); err != nil {
		return provider.Instance{}, err
	}
	if err := p.checkZone(spec.Zone); err != nil {
		return provider.Instance{}, err
	}
	defer p.lock(spec.Name)()
	if found, ok := p.world.look(spec.Name); ok {
		if found.defined && found.instance.State != provider.Stopped && found.pieces[string(StepStart)] {
			return p.adopt(ctx, found.instance)
		}
		p.world.Vanish(spec.Name)
	}
	err := p.build(ctx, spec)
	if err != nil && !errors.Is(err, errInterrupted) {
		p.world.Vanish(spec.Name)
	}
	if err != nil {
		return provider.Instance{}, err
	}
	found, _ := p.world.look(spec.Name)
	return found.instance, nil
}

// adopt goes on where a Create was cut off.
func (p *Provider) adopt(ctx context.Context, found provider.Instance) (provider.Instance, error) {
	if err := ctx.Err(); err != nil {
		return provider.Instance{}, err
	}
	if found.Address == "" && p.pass(ctx, StepAddress) == nil {
		p.world.SetAddress(found.Name, p.options.Address)
	}
	now, _ := p.world.look(found.Name)
	return now.instance, nil
}

func (p *Provider) build(ctx context.Context, spec provider.Spec) error {
	made := p.instance(spec)
	for _, step := range CreateSteps {
		if err := p.pass(ctx, step); err != nil {
			return err
		}
		provider.Report(ctx, "fake: %s", step)
		p.world.put(spec.Name, p.options.Cluster)
		p.world.change(spec.Name, func(e *entry) {
			e.pieces[string(step)] = true
			if step == StepDefine {
				e.defined, e.instance = true, made
			}
		})
		if p.cut(step) {
			return errInterrupted
		}
	}
	if p.pass(ctx, StepAddress) == nil {
		p.world.SetAddress(spec.Name, p.options.Address)
	}
	return nil
}

func (p *Provider) instance(spec provider.Spec) provider.Instance {
	zone := spec.Zone
	if zone == "" {
		zone = p.options.Zones[0]
	}
	port := p.options.Port
	if port == 0 {
		port = spec.Port
	}
	return provider.Instance{
		Ref:       provider.Ref{Name: spec.Name, Zone: zone},
		ID:        fmt.Sprintf("fake-%d", p.world.next()),
		State:     provider.Provisioning,
		Port:      port,
		Labels:    spec.Labels,
		CreatedAt: time.Now().Truncate(time.Second),
	}
}

func (p *Provider) checkZone(zone string) error {
	if zone != "" && !slices.Contains(p.options.Zones, zone) {
		return provider.Permanentf("zone %q: want one of %q", zone, p.options.Zones)
	}
	return nil
}

// Get reports what the World has.
func (p *Provider) Get(ctx context.Context, ref provider.Ref) (provider.Instance, error) {
	if err := p.pass(ctx, StepGet); err != nil {
		return provider.Instance{}, err
	}
	if err := p.checkZone(ref.Zone); err != nil {
		return provider.Instance{}, err
	}
	found, ok := p.world.look(ref.Name)
	if !ok || !found.defined {
		return provider.Instance{}, provider.NotFoundf("instance %q: nothing of that name", ref)
	}
	return found.instance, nil
}

// Delete removes all pieces.
func (p *Provider) Delete(ctx context.Context, ref provider.Ref) error {
	if err := p.pass(ctx, StepDelete); err != nil {
		return err
	}
	if err := p.checkZone(ref.Zone); err != nil {
		return err
	}
	defer p.lock(ref.Name)()
	p.world.Vanish(ref.Name)
	return nil
}

// List reports the cluster's instances and leftovers, in the order of names.
func (p *Provider) List(ctx context.Context) ([]provider.Instance, error) {
	if err := p.pass(ctx, StepList); err != nil {
		return nil, err
	}
	var list []provider.Instance
	for _, name := range p.world.Names() {
		found, ok := p.world.look(name)
		if !ok || found.cluster != p.options.Cluster {
			continue
		}
		if !found.defined {
			found.instance.Ref = provider.Ref{Name: name, Zone: p.options.Zones[0]}
			found.instance.State = provider.Leftover
		}
		list = append(list, found.instance)
	}
	return list, nil
}
