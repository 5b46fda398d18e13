package virt

import (
	"context"
	"encoding/xml"
	"fmt"
	"slices"
	"strings"

	"github.com/digitalocean/go-libvirt"

	"github.com/egress-proxies/egress/provider"
)

// Versions of what runs on a host, as "9.0.0".
type Versions struct {
	// Libvirt is the daemon's.
	Libvirt string
	// Hypervisor is QEMU's.
	Hypervisor string
	// Hostname is the host's own name.
	Hostname string
}

// Versions asks for the versions and the host's name.
func (h *Host) Versions(ctx context.Context) (v Versions, err error) {
	v.Libvirt, err = ask(ctx, h, "ConnectGetLibVersion", nil, func(l *libvirt.Libvirt) (string, error) {
		n, err := l.ConnectGetLibVersion()
		return dotted(n), err
	})
	if err != nil {
		return v, err
	}
	v.Hypervisor, err = ask(ctx, h, "ConnectGetVersion", nil, func(l *libvirt.Libvirt) (string, error) {
		n, err := l.ConnectGetVersion()
		return dotted(n), err
	})
	if err != nil {
		return v, err
	}
	v.Hostname, err = ask(ctx, h, "ConnectGetHostname", nil, func(l *libvirt.Libvirt) (string, error) {
		return l.ConnectGetHostname()
	})
	return v, err
}

// dotted takes libvirt's major*1000000 + minor*1000 + release apart.
func dotted(n uint64) string {
	return fmt.Sprintf("%d.%d.%d", n/1000000, n/1000%1000, n%1000)
}

// Memory of a host in bytes.
type Memory struct {
	// Total that the host has.
	Total uint64
	// Available is what a new process could get: free and caches.
	Available uint64
}

// Memory asks for the host's memory.
func (h *Host) Memory(ctx context.Context) (Memory, error) {
	return ask(ctx, h, "NodeGetMemoryStats", nil, func(l *libvirt.Libvirt) (m Memory, err error) {
		// libvirt refuses to be asked for more or fewer numbers than it has, and
		// has four of all cells: "nparams in virHostMemGetStatsLinux must be 4".
		stats, _, err := l.NodeGetMemoryStats(4, int32(libvirt.NodeMemoryStatsAllCells), 0)
		for _, stat := range stats {
			switch stat.Field {
			case "total":
				m.Total = stat.Value * 1024
			case "free", "cached", "buffers":
				m.Available += stat.Value * 1024
			}
		}
		return m, err
	})
}

// Abilities is what a host can run.
type Abilities struct {
	// Types are the virtualization types for x86_64: "kvm", "qemu".
	Types []string
	// UEFI is true when libvirt knows a firmware image for q35.
	UEFI bool
}

// Has is true when the host can run the type.
func (a Abilities) Has(virtType string) bool { return slices.Contains(a.Types, virtType) }

// Abilities asks what the host can run. KVM is among the types only when
// /dev/kvm is there and usable.
func (h *Host) Abilities(ctx context.Context) (Abilities, error) {
	var a Abilities
	document, err := ask(ctx, h, "ConnectGetCapabilities", nil, func(l *libvirt.Libvirt) (string, error) {
		return l.ConnectGetCapabilities()
	})
	if err != nil {
		return a, err
	}
	h.traceXML("ConnectGetCapabilities", document)
	if a.Types, err = virtTypes(document); err != nil {
		return a, provider.Transientf("host %s: capabilities: %w", h.options.Name, err)
	}
	if len(a.Types) == 0 {
		return a, nil
	}
	document, err = h.domainCapabilities(ctx, &a)
	if err != nil {
		return a, err
	}
	a.UEFI, err = hasUEFI(document)
	if err != nil {
		return a, provider.Transientf("host %s: domain capabilities: %w", h.options.Name, err)
	}
	return a, nil
}

// domainCapabilities asks what a q35 machine can have, under KVM if there is.
// When libvirt can't tell that of KVM, it is no KVM to start machines with.
func (h *Host) domainCapabilities(ctx context.Context, a *Abilities) (document string, err error) {
	of := func(virtType string) (string, error) {
		return ask(ctx, h, "ConnectGetDomainCapabilities", []any{"virt_type", virtType}, func(l *libvirt.Libvirt) (string, error) {
			return l.ConnectGetDomainCapabilities(nil, libvirt.OptString{"x86_64"}, libvirt.OptString{"q35"}, libvirt.OptString{virtType}, 0)
		})
	}
	if a.Has("kvm") {
		if document, err = of("kvm"); CodeName(err) != "" && len(a.Types) > 1 {
			a.Types = slices.DeleteFunc(a.Types, func(t string) bool { return t == "kvm" })
		} else {
			h.traceXML("ConnectGetDomainCapabilities", document)
			return document, err
		}
	}
	document, err = of(a.Types[0])
	h.traceXML("ConnectGetDomainCapabilities", document)
	return document, err
}

func virtTypes(document string) ([]string, error) {
	var capabilities struct {
		Guests []struct {
			OSType string `xml:"os_type"`
			Arch   struct {
				Name    string `xml:"name,attr"`
				Domains []struct {
					Type string `xml:"type,attr"`
				} `xml:"domain"`
			} `xml:"arch"`
		} `xml:"guest"`
	}
	if err := xml.Unmarshal([]byte(document), &capabilities); err != nil {
		return nil, err
	}
	var types []string
	for _, guest := range capabilities.Guests {
		if guest.OSType != "hvm" || guest.Arch.Name != "x86_64" {
			continue
		}
		for _, domain := range guest.Arch.Domains {
			types = append(types, domain.Type)
		}
	}
	slices.Sort(types)
	return slices.Compact(types), nil
}

func hasUEFI(document string) (bool, error) {
	var capabilities struct {
		Enums []struct {
			Name   string   `xml:"name,attr"`
			Values []string `xml:"value"`
		} `xml:"os>enum"`
	}
	if err := xml.Unmarshal([]byte(document), &capabilities); err != nil {
		return false, err
	}
	for _, enum := range capabilities.Enums {
		if enum.Name == "firmware" && slices.Contains(enum.Values, "efi") {
			return true, nil
		}
	}
	return false, nil
}

func (h *Host) network(ctx context.Context, name string) (libvirt.Network, error) {
	return ask(ctx, h, "NetworkLookupByName", []any{"network", name}, func(l *libvirt.Libvirt) (libvirt.Network, error) {
		return l.NetworkLookupByName(name)
	})
}

// NetworkActive says whether a libvirt network runs. One that does not exist
// is an error with the code ErrNoNetwork.
func (h *Host) NetworkActive(ctx context.Context, name string) (bool, error) {
	net, err := h.network(ctx, name)
	if err != nil {
		return false, err
	}
	return ask(ctx, h, "NetworkIsActive", []any{"network", name}, func(l *libvirt.Libvirt) (bool, error) {
		n, err := l.NetworkIsActive(net)
		return n == 1, err
	})
}

// BridgeExists says whether the host has an interface of the name. A libvirt
// without its interface driver can't tell and gives known as false.
func (h *Host) BridgeExists(ctx context.Context, name string) (exists, known bool, err error) {
	err = h.call(ctx, "InterfaceLookupByName", []any{"interface", name}, func(l *libvirt.Libvirt) error {
		_, err := l.InterfaceLookupByName(name)
		return err
	})
	switch {
	case err == nil:
		return true, true, nil
	case Is(err, libvirt.ErrNoInterface), err != nil && strings.Contains(err.Error(), "couldn't find interface"):
		return false, true, nil
	case Is(err, libvirt.ErrNoSupport):
		return false, false, nil
	default:
		return false, false, err
	}
}
