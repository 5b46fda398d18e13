package kvm

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/digitalocean/go-libvirt"
	"github.com/hashicorp/go-hclog"

	"github.com/egress-proxies/egress/provider"
	"github.com/egress-proxies/egress/provider/kvm/virt"
	"github.com/egress-proxies/egress/provider/providertest"
)

// world is some hosts and the directories of one Nomad node.
type world struct {
	hosts map[string]*fake
	state string
	image string
}

func newWorld(t *testing.T, names ...string) *world {
	t.Helper()
	w := &world{hosts: map[string]*fake{}, state: t.TempDir(), image: filepath.Join(t.TempDir(), "image.raw")}
	for _, name := range names {
		w.hosts[name] = newFake()
	}
	disk := bytes.Repeat([]byte{0, 1, 0xFE, 0xFF}, 64<<10)
	disk[510], disk[511] = 0x55, 0xAA // a boot sector
	if err := os.WriteFile(w.image, disk, 0o600); err != nil {
		t.Fatal(err)
	}
	return w
}

// provider is the plugin, started anew.
func (w *world) provider(t *testing.T, cluster string) *Provider {
	t.Helper()
	hosts := map[string]any{}
	for name := range w.hosts {
		hosts[name] = map[string]any{"address": "unix:///run/" + name}
	}
	settings, err := parse(map[string]any{
		"host":  hosts,
		"image": map[string]any{"test": map[string]any{"url": w.image}},
		"machine_type": map[string]any{
			"small": map[string]any{"cores": 1, "memory_mib": 256},
		},
		"default_image": "test",
	})
	if err != nil {
		t.Fatal(err)
	}
	p := build(settings, provider.Env{Cluster: cluster, Node: "node", StateDir: w.state, Logger: hclog.NewNullLogger()},
		func(h hostSettings) hypervisor { return w.hosts[h.name] })
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

func spec(*testing.T) provider.Spec {
	return provider.Spec{MachineType: "small", Port: 3128, UserData: []byte("#cloud-config\n")}
}

func TestContract(t *testing.T) {
	w := newWorld(t, "a")
	host := w.hosts["a"]
	h := providertest.Harness{
		New:  func(t *testing.T, cluster string) provider.Provider { return w.provider(t, cluster) },
		Spec: spec,
		End: func(t *testing.T, i provider.Instance) {
			host.set(i.Name, virt.State{Phase: virt.Off, Ending: virt.EndCrashed, Reason: "the guest crashed"})
		},
		Count:       func(t *testing.T, name string) int { return host.count(t, name) },
		UnknownZone: "typo",
	}
	// A plugin that was killed after each step.
	for _, step := range []struct {
		name, method string
		skip         int
	}{
		{"overlay", "CreateVolume", 0}, {"console", "CreateVolume", 1}, {"seed", "CreateVolume", 2},
		{"upload", "Upload/seed", 0}, {"define", "DefineDomain", 0}, {"start", "StartDomain", 0},
	} {
		h.Partials = append(h.Partials, providertest.Partial{Name: step.name, Make: func(t *testing.T, spec provider.Spec) {
			warm(t, w)
			host.mu.Lock()
			host.killAfter, host.killSkip = step.method, step.skip
			host.mu.Unlock()
			if _, err := w.provider(t, spec.Labels.Cluster).Create(t.Context(), spec); err == nil {
				t.Fatal("the plugin was not killed")
			}
			host.mu.Lock()
			host.killAfter, host.dead = "", false
			host.mu.Unlock()
		}})
	}
	// Every call that a start makes fails, before and after its effect (case 4).
	for _, method := range []string{
		"Pool", "Memory", "ListVolumes", "Abilities", "CreateVolume", "Volume", "Upload/seed", "DefineDomain", "StartDomain",
	} {
		for _, class := range []error{provider.ErrTransient, provider.ErrQuotaExceeded, provider.ErrPermanent} {
			if class == provider.ErrTransient && (method == "ListVolumes" || method == "Volume") {
				continue // the image cache tries these again by itself
			}
			h.Faults = append(h.Faults,
				fault(w, "before/"+method, class, host.fail, method),
				fault(w, "after/"+method, class, host.after, method))
		}
	}
	providertest.Run(t, h)
}

// warm has the image fetched, so that the steps are those of the machine.
func warm(t *testing.T, w *world) {
	t.Helper()
	p := w.provider(t, "contract")
	source, err := p.settings.catalog.Resolve("test", "")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.images.Ensure(t.Context(), source, p.Targets()[0]); err != nil {
		t.Fatal(err)
	}
}

// fault makes the next call of a method fail.
func fault(w *world, name string, class error, faults map[string]error, method string) providertest.Fault {
	host := w.hosts["a"]
	return providertest.Fault{Name: name + "/" + class.Error(), Class: class, Provider: func(t *testing.T) provider.Provider {
		warm(t, w)
		p := w.provider(t, "contract")
		host.mu.Lock()
		faults[method] = answer(class, libvirt.ErrInternalError, "injected into "+method)
		host.mu.Unlock()
		t.Cleanup(func() {
			host.mu.Lock()
			delete(faults, method)
			host.mu.Unlock()
		})
		return p
	}}
}
