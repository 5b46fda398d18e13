package kvm

import (
	"context"
	"io"
	"time"

	"github.com/egress-proxies/egress/provider/kvm/virt"
)

// hypervisor is one host as this package uses it. *virt.Host is the real one;
// tests have another with faults in it.
type hypervisor interface {
	machines
	observer
	storage
	files
	node
	guest
}

// machines are made and unmade.
type machines interface {
	LookupDomain(ctx context.Context, name string) (virt.Domain, error)
	ListDomains(ctx context.Context) ([]virt.Domain, error)
	DefineDomain(ctx context.Context, xml string) (virt.Domain, error)
	StartDomain(ctx context.Context, d virt.Domain) error
	DestroyDomain(ctx context.Context, d virt.Domain) error
	UndefineDomain(ctx context.Context, d virt.Domain) error
}

// observer looks at a machine.
type observer interface {
	DomainState(ctx context.Context, d virt.Domain) (virt.State, error)
	Metadata(ctx context.Context, d virt.Domain, uri string) (string, error)
	DomainUsage(ctx context.Context, d virt.Domain) (virt.Usage, error)
	DomainAddresses(ctx context.Context, d virt.Domain, source virt.Source) ([]virt.Card, error)
	Leases(ctx context.Context, network, mac string) ([]virt.Lease, error)
	Changes(ctx context.Context, name string) (<-chan struct{}, error)
}

// storage keeps volumes.
type storage interface {
	Pool(ctx context.Context, name string, fresh bool) (virt.Pool, error)
	Volume(ctx context.Context, pool, name string) (virt.Volume, error)
	ListVolumes(ctx context.Context, pool string) ([]string, error)
	CreateVolume(ctx context.Context, pool, document string) error
	DeleteVolume(ctx context.Context, pool, name string) error
}

// files are the contents of volumes.
type files interface {
	Upload(ctx context.Context, pool, name string, r io.Reader) error
	VolumeSize(ctx context.Context, pool, name string) (int64, error)
	ReadVolume(ctx context.Context, pool, name string, offset, length int64) ([]byte, error)
}

// node is the host itself.
type node interface {
	Versions(ctx context.Context) (virt.Versions, error)
	Memory(ctx context.Context) (virt.Memory, error)
	Abilities(ctx context.Context) (virt.Abilities, error)
	NetworkActive(ctx context.Context, name string) (bool, error)
	BridgeExists(ctx context.Context, name string) (exists, known bool, err error)
}

// guest is what runs in a machine.
type guest interface {
	ShutdownDomain(ctx context.Context, d virt.Domain) error
	Agent(ctx context.Context, d virt.Domain, command string, timeout time.Duration) (string, error)
}

var _ hypervisor = (*virt.Host)(nil)

// host is a configured hypervisor.
type host struct {
	hostSettings
	hypervisor
	check checking
	// arriving is how many machines were placed here that may not be counted
	// by libvirt yet.
	arriving int
}
