package kvm

import (
	"os"

	"github.com/egress-proxies/egress/provider"
	"github.com/egress-proxies/egress/provider/kvm/image"
)

// Defaults of a task that says nothing about its size.
const (
	defaultCores     = 1
	defaultMemoryMiB = 512
)

// size of a machine.
type size struct {
	cores     int
	memoryMiB int64
	diskMiB   int64 // 0 is the image's own
}

// plan is a spec in this provider's terms.
type plan struct {
	spec   provider.Spec
	size   size
	source image.Source
	vendor []byte
}

// Validate says what is wrong with a spec before anything is asked.
func (p *Provider) Validate(spec provider.Spec) error {
	_, err := p.plan(spec)
	return err
}

func (p *Provider) plan(spec provider.Spec) (plan, error) {
	for key, given := range map[string]bool{
		"command":  spec.Command != "",
		"args":     len(spec.Args) > 0,
		"bind":     spec.Bind != "",
		"endpoint": spec.Endpoint != provider.Endpoint{},
	} {
		if given {
			return plan{}, provider.Permanentf("%s: has no meaning for a provider of type kvm: start the proxy by user_data", key)
		}
	}
	if spec.Zone != "" {
		if _, err := p.host(spec.Zone); err != nil {
			return plan{}, err
		}
	}
	size, err := p.size(spec)
	if err != nil {
		return plan{}, err
	}
	name := orDefault(spec.Image, p.settings.DefaultImage)
	if name == "" {
		return plan{}, provider.Permanentf("image is missing: want one of %s, an http(s) URL or a path", keys(p.settings.Images))
	}
	source, err := p.settings.catalog.Resolve(name, spec.Dir)
	if err != nil {
		return plan{}, err
	}
	return plan{spec: spec, size: size, source: source}, nil
}

func (p *Provider) size(spec provider.Spec) (size, error) {
	name := orDefault(spec.MachineType, p.settings.DefaultMachineType)
	if name != "" {
		m, ok := p.settings.MachineTypes[name]
		if !ok {
			return size{}, provider.Permanentf("machine_type %q: want one of %s, or none, which takes the task's resources", name, keys(p.settings.MachineTypes))
		}
		return size{m.Cores, m.MemoryMiB, max(m.DiskMiB, p.settings.DiskMiB)}, nil
	}
	r := spec.Resources
	s := size{r.Cores, r.MemoryMiB, max(r.DiskMiB, p.settings.DiskMiB)}
	if s.cores == 0 {
		s.cores = defaultCores
	}
	if s.memoryMiB == 0 {
		s.memoryMiB = defaultMemoryMiB
	}
	if s.memoryMiB < minMemoryMiB || s.cores > maxCores {
		return size{}, provider.Permanentf("resources: %d cores and %d MiB of memory: want up to %d and at least %d", s.cores, s.memoryMiB, maxCores, minMemoryMiB)
	}
	return s, nil
}

// vendorData reads the file anew for each machine. A missing one may still be
// delivered.
func (p *Provider) vendorData() ([]byte, error) {
	if p.settings.VendorDataFile == "" {
		return nil, nil
	}
	content, err := os.ReadFile(p.settings.VendorDataFile)
	if err != nil {
		return nil, provider.Transientf("vendor_data_file: %w", err)
	}
	return content, nil
}
