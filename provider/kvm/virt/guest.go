package virt

import (
	"context"
	"net/netip"
	"strings"
	"time"

	"github.com/digitalocean/go-libvirt"

	"github.com/egress-proxies/egress/provider"
)

// Source is where libvirt learns addresses.
type Source int32

// The sources of DomainAddresses.
const (
	SourceAgent = Source(libvirt.DomainInterfaceAddressesSrcAgent)
	SourceARP   = Source(libvirt.DomainInterfaceAddressesSrcArp)
)

// String is the name for messages.
func (s Source) String() string {
	if s == SourceARP {
		return "arp"
	}
	return "agent"
}

// Card is a network card and its addresses.
type Card struct {
	// MAC in lower case with colons; empty when the source does not know.
	MAC string
	// Addresses in no particular order.
	Addresses []netip.Addr
}

// DomainAddresses asks one source for the addresses of a running machine.
func (h *Host) DomainAddresses(ctx context.Context, d Domain, source Source) ([]Card, error) {
	given := append(given(d), "source", source.String())
	return ask(ctx, h, "DomainInterfaceAddresses", given, func(l *libvirt.Libvirt) (cards []Card, err error) {
		raw, err := l.DomainInterfaceAddresses(d.raw(), uint32(source), 0)
		for _, card := range raw {
			c := Card{MAC: strings.ToLower(optional(card.Hwaddr))}
			for _, address := range card.Addrs {
				if parsed, err := netip.ParseAddr(address.Addr); err == nil {
					c.Addresses = append(c.Addresses, parsed)
				}
			}
			cards = append(cards, c)
		}
		return cards, err
	})
}

// Lease is what a DHCP server of libvirt gave out.
type Lease struct {
	// MAC in lower case with colons.
	MAC string
	// Address that was given.
	Address netip.Addr
	// Expires is when it ends; it moves with each renewal.
	Expires time.Time
}

// Leases asks a libvirt network for the leases of one MAC.
func (h *Host) Leases(ctx context.Context, network, mac string) ([]Lease, error) {
	net, err := h.network(ctx, network)
	if err != nil {
		return nil, err
	}
	given := []any{"network", network, "mac", mac}
	return ask(ctx, h, "NetworkGetDhcpLeases", given, func(l *libvirt.Libvirt) (leases []Lease, err error) {
		raw, _, err := l.NetworkGetDhcpLeases(net, libvirt.OptString{mac}, 1, 0)
		for _, lease := range raw {
			if address, err := netip.ParseAddr(lease.Ipaddr); err == nil {
				leases = append(leases, Lease{
					MAC:     strings.ToLower(optional(lease.Mac)),
					Address: address,
					Expires: time.Unix(lease.Expirytime, 0),
				})
			}
		}
		return leases, err
	})
}

// Agent sends one command to the guest agent and gives its JSON answer.
// timeout is rounded up to whole seconds. The command is not logged: it may
// hold whatever a person runs in the guest.
func (h *Host) Agent(ctx context.Context, d Domain, command string, timeout time.Duration) (string, error) {
	seconds := int32((timeout + time.Second - 1) / time.Second)
	given := append(given(d), "bytes", len(command), "timeout", timeout)
	answer, err := ask(ctx, h, "DomainQemuAgentCommand", given, func(l *libvirt.Libvirt) (string, error) {
		raw, err := l.QEMUDomainAgentCommand(d.raw(), command, seconds, 0)
		return optional(raw), err
	})
	switch {
	case err == nil:
		return answer, nil
	case Is(err, libvirt.ErrAgentUnresponsive):
		return "", provider.Transientf("the guest agent does not answer: is qemu-guest-agent running in the guest? %w", err)
	case strings.Contains(err.Error(), "has been disabled") || strings.Contains(err.Error(), "has not been found"):
		return "", provider.Permanentf("the guest agent refuses the command: its configuration in the guest forbids it: %w", err)
	}
	return "", err
}

func optional(s libvirt.OptString) string {
	if len(s) == 0 {
		return ""
	}
	return s[0]
}
