package process

import (
	"net"
	"net/netip"
)

// reachable is the address that clients use for something that listens on
// listen: listen itself, or for every address the node's first one that is not
// loopback, IPv4 before IPv6.
func reachable(listen string) string {
	if addr, err := netip.ParseAddr(listen); err == nil && !addr.IsUnspecified() {
		return addr.Unmap().String()
	}
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return "127.0.0.1"
	}
	best := netip.MustParseAddr("127.0.0.1")
	for _, entry := range addrs {
		network, ok := entry.(*net.IPNet)
		if !ok {
			continue
		}
		addr, ok := netip.AddrFromSlice(network.IP)
		addr = addr.Unmap()
		switch {
		case !ok || addr.IsLoopback() || addr.IsLinkLocalUnicast():
		case addr.Is4():
			return addr.String()
		case best.IsLoopback():
			best = addr
		}
	}
	return best.String()
}
