package kube

import "net/netip"

// inner are the networks that a proxy for the internet has no business in: the
// special-purpose registries of RFC 6890, multicast (RFC 5771, RFC 4291) and
// what is reserved. In a cluster they lead to the services and nodes of others,
// and to the metadata service of the cloud. provider/process refuses the same.
var inner = []string{
	"0.0.0.0/8",       // this network; 0.0.0.0 reaches the pod itself
	"10.0.0.0/8",      // private
	"100.64.0.0/10",   // shared address space, where some clusters have their pods
	"127.0.0.0/8",     // loopback
	"169.254.0.0/16",  // link-local, with the metadata services of clouds
	"172.16.0.0/12",   // private
	"192.0.0.0/24",    // protocol assignments
	"192.0.2.0/24",    // documentation
	"192.88.99.0/24",  // former 6to4 relays
	"192.168.0.0/16",  // private
	"198.18.0.0/15",   // benchmarks
	"198.51.100.0/24", // documentation
	"203.0.113.0/24",  // documentation
	"224.0.0.0/4",     // multicast
	"240.0.0.0/4",     // reserved, and broadcast
	"::/96",           // unspecified, loopback, and the former IPv4-compatible
	"64:ff9b:1::/48",  // local NAT64, whose embedding isn't known
	"100::/64",        // discard
	"2001::/23",       // protocol assignments, with Teredo
	"2001:db8::/32",   // documentation
	"3fff::/20",       // documentation
	"5f00::/16",       // segment routing
	"fc00::/7",        // unique local
	"fe80::/10",       // link-local
	"fec0::/10",       // former site-local
	"ff00::/8",        // multicast
}

// notPublic are the inner networks, and where NAT64 (RFC 6052) and 6to4
// (RFC 3056) embed those of IPv4: a gateway would take the packets there.
func notPublic() []string {
	all := append([]string(nil), inner...)
	for _, text := range inner {
		network := netip.MustParsePrefix(text)
		if !network.Addr().Is4() {
			continue
		}
		four := network.Addr().As4()
		nat64 := [16]byte{0x00, 0x64, 0xff, 0x9b}
		copy(nat64[12:], four[:])
		sixToFour := [16]byte{0x20, 0x02}
		copy(sixToFour[2:], four[:])
		all = append(all,
			netip.PrefixFrom(netip.AddrFrom16(nat64), 96+network.Bits()).String(),
			netip.PrefixFrom(netip.AddrFrom16(sixToFour), 16+network.Bits()).String())
	}
	return all
}
