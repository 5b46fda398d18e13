package kvm

import (
	"context"
	"crypto/rand"
	"encoding/xml"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/digitalocean/go-libvirt"

	"github.com/egress-proxies/egress/provider"
	"github.com/egress-proxies/egress/provider/kvm/domain"
	"github.com/egress-proxies/egress/provider/kvm/virt"
)

// fake is a host that keeps its machines in memory and fails on demand. Two
// providers over one fake are a plugin before and after its restart.
type fake struct {
	mu      sync.Mutex // guards the fields below
	domains map[string]*fakeDomain
	volumes map[string]*fakeVolume
	// fail gives the error of the next call of a method, before its effect.
	fail map[string]error
	// after gives the error of one that had its effect all the same.
	after map[string]error
	// dead makes every call fail: the plugin was killed. It is set when calls
	// reaches killAfter.
	dead      bool
	killAfter string
	killSkip  int
	calls     map[string]int

	pool     virt.Pool
	memory   virt.Memory
	able     virt.Abilities
	network  bool
	leases   []virt.Lease
	cards    map[virt.Source][]virt.Card
	watchers map[chan struct{}]string
	agent    func(command string) (string, error)
}

type fakeDomain struct {
	virt.Domain
	xml   string
	state virt.State
}

func newFake() *fake {
	return &fake{
		domains: map[string]*fakeDomain{}, volumes: map[string]*fakeVolume{},
		fail: map[string]error{}, after: map[string]error{}, calls: map[string]int{},
		pool:     virt.Pool{Name: "default", Active: true, Type: "dir", Path: "/pool", Capacity: 100 << 30, Available: 50 << 30},
		memory:   virt.Memory{Total: 16 << 30, Available: 8 << 30},
		able:     virt.Abilities{Types: []string{"kvm", "qemu"}, UEFI: true},
		network:  true,
		cards:    map[virt.Source][]virt.Card{},
		watchers: map[chan struct{}]string{},
	}
}

// begin is the start of every call; it holds the lock until the returned
// function is called with the error that the call would give.
func (f *fake) begin(ctx context.Context, method string) (end func(*error), err error) {
	if ctx.Err() != nil {
		return nil, provider.Transientf("%s: %w", method, ctx.Err())
	}
	f.mu.Lock()
	f.calls[method]++
	if f.dead {
		f.mu.Unlock()
		return nil, provider.Transientf("%s: the plugin is dead", method)
	}
	if err := f.fail[method]; err != nil {
		delete(f.fail, method) // once: what cleans up afterwards works
		f.mu.Unlock()
		return nil, err
	}
	return func(err *error) {
		if f.killAfter == method {
			if f.killSkip--; f.killSkip < 0 {
				f.dead = true
				*err = provider.Transientf("%s: killed", method)
			}
		}
		if *err == nil && f.after[method] != nil {
			*err = f.after[method]
			delete(f.after, method)
		}
		f.mu.Unlock()
	}, nil
}

func answer(class error, code libvirt.ErrorNumber, message string) error {
	return &provider.Error{Class: class, Err: libvirt.Error{Code: uint32(code), Message: message}}
}

func (f *fake) get(d virt.Domain) (*fakeDomain, error) {
	if found, ok := f.domains[d.Name]; ok && found.UUID == d.UUID {
		return found, nil
	}
	return nil, answer(provider.ErrNotFound, libvirt.ErrNoDomain, "Domain not found")
}

func (f *fake) LookupDomain(ctx context.Context, name string) (d virt.Domain, err error) {
	end, err := f.begin(ctx, "LookupDomain")
	if err != nil {
		return d, err
	}
	defer end(&err)
	found, ok := f.domains[name]
	if !ok {
		return d, answer(provider.ErrNotFound, libvirt.ErrNoDomain, "Domain not found")
	}
	return found.Domain, nil
}

func (f *fake) ListDomains(ctx context.Context) (all []virt.Domain, err error) {
	end, err := f.begin(ctx, "ListDomains")
	if err != nil {
		return nil, err
	}
	defer end(&err)
	for _, d := range f.domains {
		all = append(all, d.Domain)
	}
	return all, nil
}

func (f *fake) DefineDomain(ctx context.Context, document string) (d virt.Domain, err error) {
	end, err := f.begin(ctx, "DefineDomain")
	if err != nil {
		return d, err
	}
	defer end(&err)
	var parsed struct {
		Name string `xml:"name"`
	}
	if err := xml.Unmarshal([]byte(document), &parsed); err != nil {
		return d, answer(provider.ErrPermanent, libvirt.ErrXMLError, err.Error())
	}
	made := &fakeDomain{Domain: virt.Domain{Name: parsed.Name}, xml: document, state: virt.State{Phase: virt.Off}}
	if _, err := rand.Read(made.UUID[:]); err != nil {
		return d, err
	}
	f.domains[parsed.Name] = made
	return made.Domain, nil
}

func (f *fake) StartDomain(ctx context.Context, d virt.Domain) (err error) {
	end, err := f.begin(ctx, "StartDomain")
	if err != nil {
		return err
	}
	defer end(&err)
	found, err := f.get(d)
	if err == nil {
		found.state = virt.State{Phase: virt.Active}
	}
	return err
}

func (f *fake) DestroyDomain(ctx context.Context, d virt.Domain) (err error) {
	end, err := f.begin(ctx, "DestroyDomain")
	if err != nil {
		return err
	}
	defer end(&err)
	if found, err := f.get(d); err == nil {
		found.state = virt.State{Phase: virt.Off, Ending: virt.EndDestroyed, Reason: "destroyed"}
	}
	return nil
}

func (f *fake) UndefineDomain(ctx context.Context, d virt.Domain) (err error) {
	end, err := f.begin(ctx, "UndefineDomain")
	if err != nil {
		return err
	}
	defer end(&err)
	delete(f.domains, d.Name)
	f.event(d.Name)
	return nil
}

func (f *fake) ShutdownDomain(ctx context.Context, d virt.Domain) (err error) {
	end, err := f.begin(ctx, "ShutdownDomain")
	if err != nil {
		return err
	}
	defer end(&err)
	_, err = f.get(d)
	return err
}

func (f *fake) DomainState(ctx context.Context, d virt.Domain) (state virt.State, err error) {
	end, err := f.begin(ctx, "DomainState")
	if err != nil {
		return state, err
	}
	defer end(&err)
	found, err := f.get(d)
	if err != nil {
		return state, err
	}
	return found.state, nil
}

// Metadata comes without its namespace's declaration, as libvirt gives it.
func (f *fake) Metadata(ctx context.Context, d virt.Domain, uri string) (inner string, err error) {
	end, err := f.begin(ctx, "Metadata")
	if err != nil {
		return "", err
	}
	defer end(&err)
	found, err := f.get(d)
	if err != nil {
		return "", err
	}
	_, inner, _ = strings.Cut(found.xml, "<metadata>")
	inner, _, _ = strings.Cut(inner, "</metadata>")
	return strings.Replace(inner, ` xmlns:egress="`+uri+`"`, "", 1), nil
}

func (f *fake) DomainUsage(ctx context.Context, d virt.Domain) (u virt.Usage, err error) {
	end, err := f.begin(ctx, "DomainUsage")
	if err != nil {
		return u, err
	}
	defer end(&err)
	_, err = f.get(d)
	return virt.Usage{CPUTime: time.Second, MemoryBytes: 1 << 20}, err
}

func (f *fake) DomainAddresses(ctx context.Context, d virt.Domain, source virt.Source) (cards []virt.Card, err error) {
	end, err := f.begin(ctx, "DomainAddresses/"+source.String())
	if err != nil {
		return nil, err
	}
	defer end(&err)
	if _, err := f.get(d); err != nil {
		return nil, err
	}
	if cards, ok := f.cards[source]; ok || source == virt.SourceARP {
		return cards, nil
	}
	return []virt.Card{
		{MAC: "", Addresses: []netip.Addr{netip.MustParseAddr("127.0.0.1")}},
		{MAC: domain.MAC(d.Name), Addresses: []netip.Addr{netip.MustParseAddr("fe80::1"), netip.MustParseAddr("10.0.0.9")}},
	}, nil
}

func (f *fake) Leases(ctx context.Context, _, _ string) (leases []virt.Lease, err error) {
	end, err := f.begin(ctx, "Leases")
	if err != nil {
		return nil, err
	}
	defer end(&err)
	return append(leases, f.leases...), nil
}

func (f *fake) Changes(ctx context.Context, name string) (c <-chan struct{}, err error) {
	end, err := f.begin(ctx, "Changes")
	if err != nil {
		return nil, err
	}
	defer end(&err)
	listener := make(chan struct{}, 1)
	f.watchers[listener] = name
	return listener, nil
}

// event wakes the watchers of a machine; the lock is held.
func (f *fake) event(name string) {
	for listener, wanted := range f.watchers {
		if wanted == name {
			select {
			case listener <- struct{}{}:
			default:
			}
		}
	}
}

// set changes a machine's state from outside.
func (f *fake) set(name string, state virt.State) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.domains[name].state = state
	f.event(name)
}

func (f *fake) Agent(ctx context.Context, d virt.Domain, command string, _ time.Duration) (reply string, err error) {
	end, err := f.begin(ctx, "Agent")
	if err != nil {
		return "", err
	}
	defer end(&err)
	return f.agent(command)
}

// count counts what exists for a name.
func (f *fake) count(t *testing.T, name string) int {
	t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	n := 0
	if _, ok := f.domains[name]; ok {
		n++
	}
	for volume := range f.volumes {
		if _, owner, _, ok := domain.ParseVolumeName(volume); ok && owner == name {
			n++
		}
	}
	return n
}
