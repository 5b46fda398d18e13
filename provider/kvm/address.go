package kvm

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/egress-proxies/egress/provider/kvm/domain"
	"github.com/egress-proxies/egress/provider/kvm/virt"
)

const (
	// sourceTimeout is how long one source may take: libvirt waits five
	// seconds for a guest agent that does not answer.
	sourceTimeout = 7 * time.Second
	// addressGrace is how long the others may still take after the first
	// source had an address, so that the list is complete where it can be.
	addressGrace = 250 * time.Millisecond
)

// addresses asks the guest agent, the DHCP leases and the ARP table at once. A
// source that fails, and some do for good on some hosts, says nothing and
// spoils nothing. stale are leases of an earlier machine with the same MAC.
func (h *host) addresses(ctx context.Context, d virt.Domain, stale []string) []string {
	mac := domain.MAC(d.Name)
	ctx, cancel := context.WithTimeout(ctx, sourceTimeout)
	defer cancel()
	sources := []func() []netip.Addr{
		func() []netip.Addr {
			cards, err := h.DomainAddresses(ctx, d, virt.SourceAgent)
			return ofMAC(cards, err, mac)
		},
		func() []netip.Addr { return fresh(h.leases(ctx, mac), stale) },
		func() []netip.Addr {
			cards, err := h.DomainAddresses(ctx, d, virt.SourceARP)
			return slices.DeleteFunc(ofMAC(cards, err, mac), func(a netip.Addr) bool { return isStale(a, stale) })
		},
	}
	answers := make(chan []netip.Addr, len(sources))
	for _, ask := range sources {
		go func() { answers <- ask() }() // each ends with ctx, and has room to leave
	}
	var found []netip.Addr
	var grace <-chan time.Time
	for range sources {
		select {
		case answer := <-answers:
			for _, a := range answer {
				if usable(a) && !slices.Contains(found, a.Unmap()) {
					found = append(found, a.Unmap())
				}
			}
		case <-grace:
			return texts(found)
		}
		if len(found) > 0 && grace == nil {
			grace = time.After(addressGrace)
		}
	}
	return texts(found)
}

// usable excludes what no client can reach.
func usable(a netip.Addr) bool {
	return a.IsValid() && !a.IsLoopback() && !a.IsLinkLocalUnicast() && !a.IsMulticast() && !a.IsUnspecified()
}

// texts puts IPv4 first, and is the same for the same set.
func texts(found []netip.Addr) []string {
	slices.SortFunc(found, func(a, b netip.Addr) int {
		if a.Is4() != b.Is4() {
			if a.Is4() {
				return -1
			}
			return 1
		}
		return a.Compare(b)
	})
	out := make([]string, 0, len(found))
	for _, a := range found {
		out = append(out, a.String())
	}
	return out
}

func ofMAC(cards []virt.Card, err error, mac string) []netip.Addr {
	if err != nil {
		return nil // said in the trace; the other sources count
	}
	var found []netip.Addr
	for _, card := range cards {
		if card.MAC == mac {
			found = append(found, card.Addresses...)
		}
	}
	return found
}

// leases of one MAC; a bridge of the host's own has none that libvirt knows.
func (h *host) leases(ctx context.Context, mac string) []virt.Lease {
	if strings.HasPrefix(h.Network, domain.BridgePrefix) {
		return nil
	}
	leases, err := h.Leases(ctx, h.Network, mac)
	if err != nil {
		return nil
	}
	return slices.DeleteFunc(leases, func(l virt.Lease) bool { return l.MAC != mac })
}

// staleLeases are those that exist before the machine does.
func (h *host) staleLeases(ctx context.Context, name string) []string {
	ctx, cancel := context.WithTimeout(ctx, sourceTimeout)
	defer cancel()
	var stale []string
	for _, l := range h.leases(ctx, domain.MAC(name)) {
		stale = append(stale, leaseID(l))
	}
	return stale
}

func leaseID(l virt.Lease) string { return fmt.Sprintf("%s@%d", l.Address, l.Expires.Unix()) }

// fresh gives the newest lease of each family that is not an earlier machine's:
// a guest that asks with a new client id gets a new address, and the old lease
// stays until it expires.
func fresh(leases []virt.Lease, stale []string) []netip.Addr {
	var newest [2]virt.Lease
	for _, l := range leases {
		family := 0
		if l.Address.Is6() {
			family = 1
		}
		if !slices.Contains(stale, leaseID(l)) && !l.Expires.Before(newest[family].Expires) {
			newest[family] = l
		}
	}
	var found []netip.Addr
	for _, l := range newest {
		if l.Address.IsValid() {
			found = append(found, l.Address)
		}
	}
	return found
}

// isStale is true for an address that only an earlier lease explains: the ARP
// table may remember it.
func isStale(a netip.Addr, stale []string) bool {
	return slices.ContainsFunc(stale, func(id string) bool {
		address, _, _ := strings.Cut(id, "@")
		return address == a.String()
	})
}
