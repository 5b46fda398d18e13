package kvm

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/digitalocean/go-libvirt"

	"github.com/egress-proxies/egress/provider"
	"github.com/egress-proxies/egress/provider/kvm/dial"
)

// named is a spec with a name and labels.
func named(t *testing.T, task string) provider.Spec {
	t.Helper()
	s := spec(t)
	s.Name = provider.Name("contract", "a1b2c3d4", task)
	s.Labels = provider.Labels{Cluster: "contract", Alloc: "a1b2c3d4", Task: task, CreatedAt: time.Unix(1700000000, 0).UTC()}
	return s
}

func create(t *testing.T, p *Provider, s provider.Spec) provider.Instance {
	t.Helper()
	i, err := p.Create(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	return i
}

func TestBadOptions(t *testing.T) {
	host := func(more ...any) map[string]any {
		h := map[string]any{"address": "unix:///run/libvirt/libvirt-sock"}
		for i := 0; i < len(more); i += 2 {
			h[more[i].(string)] = more[i+1]
		}
		return map[string]any{"host": map[string]any{"a": h}}
	}
	ssh := func(more ...any) map[string]any {
		return host(append([]any{"address", "ssh://u@h", "key_file", "/k", "known_hosts_file", "/n"}, more...)...)
	}
	with := func(m map[string]any, key string, value any) map[string]any {
		m[key] = value
		return m
	}
	for _, test := range []struct {
		options map[string]any
		want    string
	}{
		{map[string]any{}, "no host"},
		{map[string]any{"hosts": 1}, `unknown key "hosts"`},
		{host("adress", "x"), "adress"},
		{host("address", ""), `key "address" is missing`},
		{host("address", "tcp://h"), "want unix:///path or ssh://user@host:22"},
		{host("address", "unix://run/x"), "three slashes"},
		{host("address", "ssh://h", "key_file", "/k", "known_hosts_file", "/n"), "no user"},
		{host("address", "ssh://u:p@h", "key_file", "/k", "known_hosts_file", "/n"), "want no password"},
		{host("address", "ssh://u@h"), `key "key_file" is missing`},
		{ssh("known_hosts_file", "", "insecure_host_key", false), `key "known_hosts_file" is missing`},
		{ssh("insecure_host_key", true), "want one of them"},
		{ssh("key_file", "relative"), "want an absolute path"},
		{host("key_file", "/k"), "no meaning for a local socket"},
		{host("virt_type", "xen"), `virt_type "xen": want one of auto, kvm, qemu`},
		{host("virt_type", "qemu", "cpu_mode", "host-passthrough"), "needs KVM"},
		{host("network", "bridge:"), "name of a bridge"},
		// A slash would make an instance unaddressable (case 40).
		{map[string]any{"host": map[string]any{"a/b": map[string]any{"address": "unix:///s"}}}, `host name "a/b"`},
		{with(host(), "image", map[string]any{"x/y": map[string]any{"url": "/i"}}), `image name "x/y"`},
		{with(host(), "image", map[string]any{"x": map[string]any{"url": "ftp://h/i"}}), `image "x"`},
		{with(host(), "default_image", "none"), `default_image "none"`},
		{with(host(), "default_machine_type", "none"), `default_machine_type "none"`},
		{with(host(), "machine_type", map[string]any{"s": map[string]any{"cores": 0, "memory_mib": 256}}), "cores 0"},
		{with(host(), "vendor_data_file", "rel"), "vendor_data_file"},
		{map[string]any{"host": map[string]any{
			"a": map[string]any{"address": "unix:///s"}, "b": map[string]any{"address": "unix:///s"},
		}}, "would count twice"},
	} {
		_, err := parse(test.options)
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%v: %v, want an error with %q", test.options, err, test.want)
		}
	}
}

func TestBadSpecs(t *testing.T) {
	p := newWorld(t, "a").provider(t, "contract")
	for want, change := range map[string]func(*provider.Spec){
		"command":             func(s *provider.Spec) { s.Command = "x" },
		"bind":                func(s *provider.Spec) { s.Bind = "10.0.0.1" },
		`machine_type "huge"`: func(s *provider.Spec) { s.MachineType = "huge" },
		`image "none"`:        func(s *provider.Spec) { s.Image = "none" },
		`zone "typo"`:         func(s *provider.Spec) { s.Zone = "typo" },
		"at least 64":         func(s *provider.Spec) { s.MachineType, s.Resources.MemoryMiB = "", 8 },
	} {
		s := spec(t)
		change(&s)
		if err := p.Validate(s); provider.Classify(err) != provider.ErrPermanent || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want ErrPermanent with %q", err, want)
		}
	}
}

// Case 42.
func TestAHostThatIsNotConfigured(t *testing.T) {
	p := newWorld(t, "a").provider(t, "contract")
	ref := provider.Ref{Name: named(t, "x").Name, Zone: "removed"}
	if err := p.Delete(t.Context(), ref); err != nil {
		t.Errorf("delete on a removed host: %v, want it finished", err)
	}
	if _, err := p.Get(t.Context(), ref); errors.Is(err, provider.ErrNotFound) || !strings.Contains(err.Error(), "want one of a") {
		t.Errorf("get on a host that is not there: %v, want an error that isn't ErrNotFound", err)
	}
}

func TestAHostThatCantBeAskedIsNotAMissingMachine(t *testing.T) {
	w := newWorld(t, "a", "b")
	p := w.provider(t, "contract")
	w.hosts["b"].fail["LookupDomain"] = provider.Transientf("down")
	if _, err := p.Get(t.Context(), provider.Ref{Name: named(t, "x").Name}); err == nil || errors.Is(err, provider.ErrNotFound) {
		t.Errorf("get while one host is down: %v, want its error", err)
	}
	w.hosts["b"].fail["ListDomains"] = provider.Transientf("down")
	if _, err := p.List(t.Context()); err == nil {
		t.Error("list while one host is down: want an error")
	}
}

func TestADomainOfSomebodyElseIsLeftAlone(t *testing.T) {
	w := newWorld(t, "a")
	p, s := w.provider(t, "contract"), named(t, "x")
	if _, err := w.hosts["a"].DefineDomain(t.Context(), "<domain><name>"+s.Name+"</name></domain>"); err != nil {
		t.Fatal(err)
	}
	if err := p.Delete(t.Context(), provider.Ref{Name: s.Name}); provider.Classify(err) != provider.ErrPermanent {
		t.Errorf("delete of a domain that isn't ours: %v, want ErrPermanent", err)
	}
	if w.hosts["a"].count(t, s.Name) != 1 {
		t.Error("a domain that isn't ours was removed")
	}
}

func TestListCostsCallsInProportionToOurs(t *testing.T) {
	w := newWorld(t, "a")
	p, host := w.provider(t, "contract"), w.hosts["a"]
	for i := range 900 {
		if _, err := host.DefineDomain(t.Context(), fmt.Sprintf("<domain><name>other-%d</name></domain>", i)); err != nil {
			t.Fatal(err)
		}
	}
	const ours = 10
	for i := range ours {
		create(t, p, named(t, fmt.Sprint("t", i)))
	}
	host.mu.Lock()
	clear(host.calls)
	host.mu.Unlock()
	all, err := p.List(t.Context())
	if err != nil || len(all) != ours {
		t.Fatalf("listed %d, %v, want %d", len(all), err, ours)
	}
	n := 0
	for _, count := range host.calls {
		n += count
	}
	if n > 2+2*ours {
		t.Errorf("%d calls to list %d of ours among 900 others, want at most %d: %v", n, ours, 2+2*ours, host.calls)
	}
}

func TestCheckReasons(t *testing.T) {
	for want, set := range map[provider.Reason]func(*fake){
		provider.Reachable:    func(f *fake) {},
		provider.LibvirtError: func(f *fake) { f.fail["Versions"] = answer(provider.ErrTransient, libvirt.ErrInternalError, "odd") },
		provider.Unreachable: func(f *fake) {
			f.fail["Versions"] = &dial.Error{Reason: provider.Unreachable, Err: provider.Transientf("no route")}
		},
		provider.SSHMaterialUnavailable: func(f *fake) {
			f.fail["Versions"] = &dial.Error{Reason: provider.SSHMaterialUnavailable, Err: provider.Transientf("key_file")}
		},
		provider.Forbidden: func(f *fake) {
			f.fail["Pool"] = answer(provider.ErrPermanent, libvirt.ErrOperationDenied, "operation virStoragePoolRefresh forbidden for read only access")
		},
		provider.PoolNotFound:              func(f *fake) { f.fail["Pool"] = answer(provider.ErrPermanent, libvirt.ErrNoStoragePool, "no pool") },
		provider.PoolNotActive:             func(f *fake) { f.pool.Active = false },
		provider.PoolNearlyFull:            func(f *fake) { f.pool.Available = 10 << 20 },
		provider.NetworkNotFound:           func(f *fake) { f.network = false },
		provider.FirmwareMissing:           func(f *fake) { f.able.UEFI = false },
		provider.VirtualizationUnavailable: func(f *fake) { f.able.Types = nil },
	} {
		w := newWorld(t, "a")
		p := w.provider(t, "contract")
		// An image that boots with UEFI, which is the default.
		set(w.hosts["a"])
		if want == provider.FirmwareMissing {
			entry := p.settings.Images["test"]
			entry.Firmware = ""
			p.settings.Images["test"] = entry
		}
		verdicts := p.Check(t.Context())
		if len(verdicts) != 1 || verdicts[0].Reason != want || verdicts[0].Ready != (want == provider.Reachable) || verdicts[0].Message == "" {
			t.Errorf("verdicts %+v, want %s", verdicts, want)
		}
	}
}
