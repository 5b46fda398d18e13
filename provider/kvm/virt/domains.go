package virt

import (
	"context"
	"fmt"
	"time"

	"github.com/digitalocean/go-libvirt"
)

// Domain addresses a machine. libvirt finds it by its UUID, so that a handle
// never means a later machine of the same name.
type Domain struct {
	// Name is unique on a host.
	Name string
	// UUID is libvirt's id.
	UUID [16]byte
}

// ID is the UUID as text.
func (d Domain) ID() string {
	u := d.UUID
	return fmt.Sprintf("%x-%x-%x-%x-%x", u[0:4], u[4:6], u[6:8], u[8:10], u[10:16])
}

func (d Domain) raw() libvirt.Domain {
	return libvirt.Domain{Name: d.Name, UUID: d.UUID, ID: -1}
}

func given(d Domain) []any { return []any{"domain", d.Name} }

// LookupDomain finds a machine by its name, or gives provider.ErrNotFound.
func (h *Host) LookupDomain(ctx context.Context, name string) (Domain, error) {
	return ask(ctx, h, "DomainLookupByName", []any{"domain", name}, func(l *libvirt.Libvirt) (Domain, error) {
		raw, err := l.DomainLookupByName(name)
		return Domain{Name: raw.Name, UUID: raw.UUID}, err
	})
}

// ListDomains gives every machine of the host, whoever made it.
func (h *Host) ListDomains(ctx context.Context) ([]Domain, error) {
	return ask(ctx, h, "ConnectListAllDomains", nil, func(l *libvirt.Libvirt) ([]Domain, error) {
		all, _, err := l.ConnectListAllDomains(1, 0)
		var found []Domain
		for _, raw := range all {
			found = append(found, Domain{Name: raw.Name, UUID: raw.UUID})
		}
		return found, err
	})
}

// DefineDomain makes a machine known to libvirt, without starting it.
func (h *Host) DefineDomain(ctx context.Context, xml string) (Domain, error) {
	h.traceXML("DomainDefineXMLFlags", xml)
	return ask(ctx, h, "DomainDefineXMLFlags", []any{"bytes", len(xml)}, func(l *libvirt.Libvirt) (Domain, error) {
		raw, err := l.DomainDefineXMLFlags(xml, 0)
		return Domain{Name: raw.Name, UUID: raw.UUID}, err
	})
}

// StartDomain boots a machine that is defined and off.
func (h *Host) StartDomain(ctx context.Context, d Domain) error {
	return h.call(ctx, "DomainCreateWithFlags", given(d), func(l *libvirt.Libvirt) error {
		_, err := l.DomainCreateWithFlags(d.raw(), 0)
		return err
	})
}

// DestroyDomain turns a machine off at once. One that is off already is
// success.
func (h *Host) DestroyDomain(ctx context.Context, d Domain) error {
	err := h.call(ctx, "DomainDestroyFlags", given(d), func(l *libvirt.Libvirt) error {
		return l.DomainDestroyFlags(d.raw(), libvirt.DomainDestroyDefault)
	})
	if Is(err, libvirt.ErrOperationInvalid) || Is(err, libvirt.ErrNoDomain) {
		return nil
	}
	return err
}

// undefineFlags remove what libvirt keeps beside the definition. Without them
// it refuses to undefine a machine that has UEFI variables, was saved by a
// host's shutdown, or has a snapshot that somebody made by hand.
const undefineFlags = libvirt.DomainUndefineManagedSave | libvirt.DomainUndefineSnapshotsMetadata |
	libvirt.DomainUndefineNvram | libvirt.DomainUndefineCheckpointsMetadata

// UndefineDomain makes libvirt forget a machine. Gone is success.
func (h *Host) UndefineDomain(ctx context.Context, d Domain) error {
	err := h.call(ctx, "DomainUndefineFlags", append(given(d), "flags", int(undefineFlags)), func(l *libvirt.Libvirt) error {
		return l.DomainUndefineFlags(d.raw(), undefineFlags)
	})
	if Is(err, libvirt.ErrNoDomain) {
		return nil
	}
	return err
}

// ShutdownDomain asks the guest to end: through its agent where there is one,
// else, or when that fails, by the power button (ACPI), which a guest that is
// still booting does not hear.
func (h *Host) ShutdownDomain(ctx context.Context, d Domain) error {
	return h.call(ctx, "DomainShutdownFlags", given(d), func(l *libvirt.Libvirt) error {
		return l.DomainShutdownFlags(d.raw(), libvirt.DomainShutdownDefault)
	})
}

// Metadata reads the metadata element of the namespace uri; empty when the
// machine has none. libvirt leaves the namespace's declaration out.
func (h *Host) Metadata(ctx context.Context, d Domain, uri string) (string, error) {
	xml, err := ask(ctx, h, "DomainGetMetadata", append(given(d), "uri", uri), func(l *libvirt.Libvirt) (string, error) {
		return l.DomainGetMetadata(d.raw(), int32(libvirt.DomainMetadataElement), libvirt.OptString{uri}, libvirt.DomainAffectCurrent)
	})
	if Is(err, libvirt.ErrNoDomainMetadata) {
		return "", nil
	}
	h.traceXML("DomainGetMetadata", xml)
	return xml, err
}

// Usage is what a machine uses.
type Usage struct {
	// CPUTime that all of its processors worked since it started.
	CPUTime time.Duration
	// MemoryBytes that it is given.
	MemoryBytes uint64
	// ResidentBytes that its process occupies on the host; 0 when unknown.
	ResidentBytes uint64
}

// DomainUsage reads the counters of a running machine.
func (h *Host) DomainUsage(ctx context.Context, d Domain) (Usage, error) {
	u, err := ask(ctx, h, "DomainGetInfo", given(d), func(l *libvirt.Libvirt) (Usage, error) {
		_, _, memory, _, cpu, err := l.DomainGetInfo(d.raw())
		return Usage{CPUTime: time.Duration(cpu), MemoryBytes: memory * 1024}, err
	})
	if err != nil {
		return Usage{}, err
	}
	u.ResidentBytes, err = ask(ctx, h, "DomainMemoryStats", given(d), func(l *libvirt.Libvirt) (resident uint64, err error) {
		stats, err := l.DomainMemoryStats(d.raw(), maxMemoryStats, 0)
		for _, stat := range stats {
			if stat.Tag == int32(libvirt.DomainMemoryStatRss) {
				resident = stat.Val * 1024
			}
		}
		return resident, err
	})
	return u, err
}

// maxMemoryStats is more than libvirt has (VIR_DOMAIN_MEMORY_STAT_NR is 13).
const maxMemoryStats = 16
