package kvm

import (
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/egress-proxies/egress/provider"
	"github.com/egress-proxies/egress/provider/kvm/dial"
	"github.com/egress-proxies/egress/provider/kvm/domain"
	"github.com/egress-proxies/egress/provider/kvm/image"
)

// Type is the value of `type` that chooses this provider.
const Type = "kvm"

// options are the keys of the provider block.
type options struct {
	Hosts              map[string]hostOptions `option:"host"`
	Images             map[string]image.Entry `option:"image"`
	MachineTypes       map[string]machineType `option:"machine_type"`
	DefaultImage       string                 `option:"default_image"`
	DefaultMachineType string                 `option:"default_machine_type"`
	ImageDirs          []string               `option:"image_dirs"`
	ImageURLs          *bool                  `option:"image_urls"`
	VendorDataFile     string                 `option:"vendor_data_file"`
	GuestAgent         *bool                  `option:"guest_agent"`
	DiskMiB            int64                  `option:"disk_mib"`
	HandshakeTimeout   time.Duration          `option:"handshake_timeout"`
	Keepalive          time.Duration          `option:"keepalive"`
}

// hostOptions are the keys of a host block.
type hostOptions struct {
	Address         string `option:"address"`
	User            string `option:"user"`
	Socket          string `option:"socket"`
	Pool            string `option:"pool"`
	Network         string `option:"network"`
	VirtType        string `option:"virt_type"`
	CPUMode         string `option:"cpu_mode"`
	KeyFile         string `option:"key_file"`
	KnownHostsFile  string `option:"known_hosts_file"`
	InsecureHostKey bool   `option:"insecure_host_key"`
}

// machineType is a size with a name.
type machineType struct {
	Cores     int   `option:"cores"`
	MemoryMiB int64 `option:"memory_mib"`
	DiskMiB   int64 `option:"disk_mib"`
}

// settings are options that were found valid.
type settings struct {
	options
	hosts   []hostSettings // by name
	catalog image.Catalog
}

// hostSettings are a host's options with their defaults.
type hostSettings struct {
	hostOptions
	name   string
	target dial.Target
}

// parse decodes and validates; every problem is told at once.
func parse(raw map[string]any) (settings, error) {
	var o options
	if err := provider.DecodeOptions(raw, &o); err != nil {
		return settings{}, err
	}
	s := settings{options: o, catalog: image.Catalog{
		Entries: o.Images, Dirs: o.ImageDirs, NoURLs: o.ImageURLs != nil && !*o.ImageURLs,
	}}
	problems := []error{s.catalog.Validate()}
	problems = append(problems, s.parseHosts()...)
	problems = append(problems, s.checkSizes()...)
	if o.DefaultImage != "" {
		if _, ok := o.Images[o.DefaultImage]; !ok {
			problems = append(problems, fmt.Errorf("default_image %q: want one of %s", o.DefaultImage, keys(o.Images)))
		}
	}
	if o.VendorDataFile != "" && !filepath.IsAbs(o.VendorDataFile) {
		problems = append(problems, fmt.Errorf("vendor_data_file %q: want an absolute path", o.VendorDataFile))
	}
	for key, d := range map[string]time.Duration{"handshake_timeout": o.HandshakeTimeout, "keepalive": o.Keepalive} {
		if d < 0 {
			problems = append(problems, fmt.Errorf("%s %q: want more than 0", key, d))
		}
	}
	return s, errors.Join(problems...)
}

func (s *settings) parseHosts() (problems []error) {
	if len(s.Hosts) == 0 {
		return []error{errors.New(`no host: want at least one host "name" { address = "unix:///run/libvirt/libvirt-sock" }`)}
	}
	places := make(map[string]string)
	for _, name := range slices.Sorted(maps.Keys(s.Hosts)) {
		if err := provider.CheckPlace("host", name); err != nil {
			problems = append(problems, err)
			continue
		}
		h, err := s.parseHost(name, s.Hosts[name])
		if err != nil {
			problems = append(problems, fmt.Errorf("host %q: %w", name, err))
			continue
		}
		place := h.target.Address.Place() + " pool " + h.Pool
		if other, ok := places[place]; ok {
			problems = append(problems, fmt.Errorf("host %q: address %q and pool %q are those of host %q: the same machines would count twice", name, h.Address, h.Pool, other))
			continue
		}
		places[place] = name
		s.hosts = append(s.hosts, h)
	}
	return problems
}

// The values of virt_type and cpu_mode.
var (
	virtTypes = []string{"auto", "kvm", "qemu"}
	cpuModes  = []string{"auto", "host-passthrough", "host-model", "maximum"}
)

func (s *settings) parseHost(name string, o hostOptions) (hostSettings, error) {
	o.Pool, o.Network = orDefault(o.Pool, "default"), orDefault(o.Network, "default")
	o.VirtType, o.CPUMode = orDefault(o.VirtType, "auto"), orDefault(o.CPUMode, "auto")
	if o.Address == "" {
		return hostSettings{}, errors.New(`key "address" is missing: want unix:///path or ssh://user@host:22`)
	}
	address, err := dial.ParseAddress(o.Address, o.User, o.Socket)
	if err != nil {
		return hostSettings{}, err
	}
	problems := []error{oneOf("virt_type", o.VirtType, virtTypes), oneOf("cpu_mode", o.CPUMode, cpuModes)}
	if o.VirtType == "qemu" && (o.CPUMode == "host-passthrough" || o.CPUMode == "host-model") {
		problems = append(problems, fmt.Errorf("cpu_mode %q: needs KVM: with virt_type qemu want maximum or auto", o.CPUMode))
	}
	if o.Network == domain.BridgePrefix {
		problems = append(problems, fmt.Errorf("network %q: want the name of a bridge after the colon", o.Network))
	}
	problems = append(problems, checkMaterial(address, o)...)
	return hostSettings{hostOptions: o, name: name, target: dial.Target{
		Address: address, KeyFile: o.KeyFile, KnownHostsFile: o.KnownHostsFile, InsecureHostKey: o.InsecureHostKey,
		HandshakeTimeout: s.HandshakeTimeout, Keepalive: s.Keepalive,
	}}, errors.Join(problems...)
}

// checkMaterial says which files a host needs. Whether they are there is found
// out when they are used, since they may be delivered later.
func checkMaterial(address dial.Address, o hostOptions) (problems []error) {
	if address.SSH == "" {
		if o.KeyFile != "" || o.KnownHostsFile != "" || o.InsecureHostKey {
			problems = append(problems, errors.New("key_file, known_hosts_file and insecure_host_key have no meaning for a local socket"))
		}
		return problems
	}
	for key, path := range map[string]string{"key_file": o.KeyFile, "known_hosts_file": o.KnownHostsFile} {
		switch {
		case path == "" && key == "known_hosts_file" && o.InsecureHostKey:
		case path == "":
			problems = append(problems, fmt.Errorf("key %q is missing: SSH needs it", key))
		case !filepath.IsAbs(path):
			problems = append(problems, fmt.Errorf("%s %q: want an absolute path", key, path))
		}
	}
	if o.InsecureHostKey && o.KnownHostsFile != "" {
		problems = append(problems, errors.New("known_hosts_file and insecure_host_key: want one of them"))
	}
	return problems
}

// Bounds of sizes: a guest with less memory does not boot, and a core count
// beyond q35's 288 is refused by QEMU.
const (
	minMemoryMiB = 64
	maxCores     = 255
	maxMiB       = 64 << 20 // 64 TiB
)

func (s *settings) checkSizes() (problems []error) {
	for name, m := range s.MachineTypes {
		if err := provider.CheckPlace("machine_type", name); err != nil {
			problems = append(problems, err)
		}
		if m.Cores < 1 || m.Cores > maxCores {
			problems = append(problems, fmt.Errorf("machine_type %q: cores %d: want 1 to %d", name, m.Cores, maxCores))
		}
		if m.MemoryMiB < minMemoryMiB || m.MemoryMiB > maxMiB {
			problems = append(problems, fmt.Errorf("machine_type %q: memory_mib %d: want at least %d", name, m.MemoryMiB, minMemoryMiB))
		}
		if m.DiskMiB < 0 || m.DiskMiB > maxMiB {
			problems = append(problems, fmt.Errorf("machine_type %q: disk_mib %d: want 0, which is the image's size, or more", name, m.DiskMiB))
		}
	}
	if s.DefaultMachineType != "" {
		if _, ok := s.MachineTypes[s.DefaultMachineType]; !ok {
			problems = append(problems, fmt.Errorf("default_machine_type %q: want one of %s", s.DefaultMachineType, keys(s.MachineTypes)))
		}
	}
	if s.DiskMiB < 0 || s.DiskMiB > maxMiB {
		problems = append(problems, fmt.Errorf("disk_mib %d: want 0, which is the image's size, or more", s.DiskMiB))
	}
	return problems
}

func oneOf(key, value string, allowed []string) error {
	if slices.Contains(allowed, value) {
		return nil
	}
	return fmt.Errorf("%s %q: want one of %s", key, value, strings.Join(allowed, ", "))
}

func orDefault(value, fallback string) string {
	if value == "" {
		return fallback
	}
	return value
}

func keys[V any](m map[string]V) string {
	return strings.Join(slices.Sorted(maps.Keys(m)), ", ")
}
