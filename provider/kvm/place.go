package kvm

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/egress-proxies/egress/provider"
)

// roomTimeout is how long a host may take to say how much room it has before
// the others are preferred.
const roomTimeout = 10 * time.Second

// minPoolBytes is what must be free in a pool for a new machine: the seed, the
// console and the first writes of a booting guest.
const minPoolBytes = 256 << 20

// room is how much a host has left.
type room struct {
	pool            string
	capacity, free  uint64 // of the pool, in bytes
	memory, memFree uint64 // in bytes
	ours            int    // machines with our prefix
}

// String tells the numbers.
func (r room) String() string {
	return fmt.Sprintf("pool %s has %d of %d MiB free, %d of %d MiB of memory are available",
		r.pool, r.free>>20, r.capacity>>20, r.memFree>>20, r.memory>>20)
}

func (h *host) room(ctx context.Context) (room, error) {
	ctx, cancel := context.WithTimeout(ctx, roomTimeout)
	defer cancel()
	pool, err := h.Pool(ctx, h.hostOptions.Pool, true)
	if err != nil {
		return room{}, err
	}
	if !pool.Active {
		return room{}, provider.Transientf("host %s: pool %s is not active: virsh pool-start %s", h.name, pool.Name, pool.Name)
	}
	if pool.Path == "" {
		return room{}, provider.Permanentf("host %s: pool %s of type %s has no directory: want one of type dir, fs or netfs", h.name, pool.Name, pool.Type)
	}
	memory, err := h.Memory(ctx)
	if err != nil {
		return room{}, err
	}
	domains, err := h.ListDomains(ctx)
	if err != nil {
		return room{}, err
	}
	r := room{pool: pool.Name, capacity: pool.Capacity, free: pool.Available, memory: memory.Total, memFree: memory.Available}
	for _, d := range domains {
		if strings.HasPrefix(d.Name, provider.NamePrefix) {
			r.ours++
		}
	}
	return r, nil
}

// lacks says what is missing for a machine of the size, or nothing.
func (r room) lacks(s size) string {
	switch {
	case r.memFree < uint64(s.memoryMiB)<<20:
		return fmt.Sprintf("memory for %d MiB is missing: %s", s.memoryMiB, r)
	case r.free < minPoolBytes:
		return fmt.Sprintf("less than %d MiB are free: %s", minPoolBytes>>20, r)
	default:
		return ""
	}
}

// fits is a quota error when the host has no room for the size. libvirt itself
// would start the guest and let it run into the wall.
func (h *host) fits(ctx context.Context, s size) error {
	r, err := h.room(ctx)
	if err != nil {
		return err
	}
	if lack := r.lacks(s); lack != "" {
		return provider.Quotaf("host %s: %s", h.name, lack)
	}
	return nil
}

// machinesThatFit is the measure of room: how many more of the size there could
// be, by memory or by disk, whichever ends first.
func (r room) machinesThatFit(s size) uint64 {
	disk := max(uint64(s.diskMiB)<<20, 1<<30)
	return min(r.memFree/(uint64(s.memoryMiB)<<20), r.free/disk)
}

// place gives the hosts to try, the one with the most room first. Hosts that
// are not ready or have no room are left out. Until done is called the machine
// counts on the first of them: those that are placed at the same time, as the
// tasks of one job are, do not all choose the same host.
func (p *Provider) place(ctx context.Context, plan plan) (hosts []*host, done func(), err error) {
	done = func() {}
	if plan.spec.Zone != "" {
		h, err := p.host(plan.spec.Zone)
		return []*host{h}, done, err
	}
	if len(p.hosts) == 1 {
		return p.hosts, done, nil
	}
	rooms := make([]room, len(p.hosts))
	errs := make([]error, len(p.hosts))
	p.each(func(i int, h *host) {
		rooms[i], errs[i] = h.room(ctx)
		if lack := rooms[i].lacks(plan.size); errs[i] == nil && lack != "" {
			errs[i] = provider.Quotaf("host %s: %s", h.name, lack)
		}
	})
	var fitting []int
	var refusals []error
	for i, err := range errs {
		if err != nil {
			refusals = append(refusals, err)
			continue
		}
		fitting = append(fitting, i)
	}
	if len(fitting) == 0 {
		return nil, done, refused(refusals)
	}
	p.placing.Lock()
	defer p.placing.Unlock()
	slices.SortStableFunc(fitting, func(a, b int) int {
		onA, onB := p.hosts[a].arriving, p.hosts[b].arriving
		left, right := int64(rooms[a].machinesThatFit(plan.size))-int64(onA), int64(rooms[b].machinesThatFit(plan.size))-int64(onB)
		if left != right {
			return cmp.Compare(right, left)
		}
		return rooms[a].ours + onA - rooms[b].ours - onB
	})
	for _, i := range fitting {
		hosts = append(hosts, p.hosts[i])
	}
	hosts[0].arriving++
	return hosts, func() {
		p.placing.Lock()
		defer p.placing.Unlock()
		hosts[0].arriving--
	}, nil
}

// refused joins why each host did not take a machine. It is worth another try
// when one of them may take it later.
func refused(refusals []error) error {
	if len(refusals) == 1 {
		return refusals[0]
	}
	class := provider.ErrPermanent
	texts := make([]string, 0, len(refusals))
	for _, err := range refusals {
		texts = append(texts, err.Error())
		switch provider.Classify(err) {
		case provider.ErrTransient, provider.ErrNotFound:
			class = provider.ErrTransient
		case provider.ErrQuotaExceeded:
			if class == provider.ErrPermanent {
				class = provider.ErrQuotaExceeded
			}
		}
	}
	return &provider.Error{Class: class, Err: fmt.Errorf("no host takes the machine: %s", strings.Join(texts, "; "))}
}
