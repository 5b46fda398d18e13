package forward

import (
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"
)

// notPublic are the networks that a proxy for the internet has no business in:
// the special-purpose registries of RFC 6890 as they stand, multicast
// (RFC 5771, RFC 4291) and what is reserved.
var notPublic = parsePrefixes(
	"0.0.0.0/8",       // this network; 0.0.0.0 reaches the node itself
	"10.0.0.0/8",      // private
	"100.64.0.0/10",   // shared address space of carrier NAT
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
)

var (
	nat64   = netip.MustParsePrefix("64:ff9b::/96") // RFC 6052
	sixToIV = netip.MustParsePrefix("2002::/16")    // RFC 3056
)

func parsePrefixes(texts ...string) []netip.Prefix {
	prefixes := make([]netip.Prefix, len(texts))
	for i, text := range texts {
		prefixes[i] = netip.MustParsePrefix(text)
	}
	return prefixes
}

func contains(prefixes []netip.Prefix, addr netip.Addr) bool {
	for _, prefix := range prefixes {
		if prefix.Contains(addr) {
			return true
		}
	}
	return false
}

// refusal is the error of a target that may not be reached.
type refusal struct {
	addr netip.Addr
	why  string
}

func (r *refusal) Error() string {
	return fmt.Sprintf("target %s is %s and is not among the allowed targets", r.addr, r.why)
}

// targets decides which addresses may be reached.
type targets struct {
	allowed []netip.Prefix
	own     *ownAddresses
}

// check is asked with the address that is about to be dialled, after the name
// was resolved, so that a name can't change its meaning in between.
func (t *targets) check(addr netip.Addr) error {
	addr = addr.WithZone("").Unmap()
	if contains(t.allowed, addr) {
		return nil
	}
	if contains(notPublic, addr) {
		return &refusal{addr: addr, why: "not on the public internet"}
	}
	if inner, ok := embedded(addr); ok {
		return t.check(inner)
	}
	if t.own.contains(addr) {
		return &refusal{addr: addr, why: "an address of the proxy's own node"}
	}
	return nil
}

// embedded is the IPv4 address that an IPv6 address leads to.
func embedded(addr netip.Addr) (netip.Addr, bool) {
	bytes := addr.As16()
	switch {
	case nat64.Contains(addr):
		return netip.AddrFrom4([4]byte(bytes[12:16])), true
	case sixToIV.Contains(addr):
		return netip.AddrFrom4([4]byte(bytes[2:6])), true
	default:
		return netip.Addr{}, false
	}
}

// ownAddresses are the node's, which a firewall in front of the node does not
// guard against the node itself.
type ownAddresses struct {
	list func() ([]net.Addr, error)
	now  func() time.Time

	mu    sync.Mutex // guards what follows
	addrs map[netip.Addr]bool
	read  time.Time
}

// ownAddressesAge is how old the list may be: an address that was added to the
// node is guarded after that time.
const ownAddressesAge = 10 * time.Second

func newOwnAddresses() *ownAddresses {
	return &ownAddresses{list: net.InterfaceAddrs, now: time.Now}
}

func (o *ownAddresses) contains(addr netip.Addr) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if now := o.now(); o.addrs == nil || now.Sub(o.read) > ownAddressesAge {
		// Netlink answers from memory; when it fails, the old list is the best
		// that there is.
		if list, err := o.list(); err == nil {
			o.addrs, o.read = addrSet(list), now
		}
	}
	return o.addrs[addr]
}

func addrSet(list []net.Addr) map[netip.Addr]bool {
	set := make(map[netip.Addr]bool, len(list))
	for _, entry := range list {
		if network, ok := entry.(*net.IPNet); ok {
			if addr, ok := netip.AddrFromSlice(network.IP); ok {
				set[addr.Unmap()] = true
			}
		}
	}
	return set
}

// parseTarget takes the authority of a CONNECT request apart: a host name or
// an IP address, IPv6 in brackets, and a port.
func parseTarget(authority string) (host string, port uint16, err error) {
	host, portText, err := net.SplitHostPort(authority)
	if err != nil {
		return "", 0, fmt.Errorf("target %q: want HOST:PORT", authority)
	}
	port, err = parsePort(portText)
	if err != nil {
		return "", 0, fmt.Errorf("target %q: port %q: want a number from 1 to 65535", authority, portText)
	}
	if err := checkHost(host); err != nil {
		return "", 0, fmt.Errorf("target %q: %w", authority, err)
	}
	return host, port, nil
}

func parsePort(text string) (uint16, error) {
	if len(text) == 0 || len(text) > 5 {
		return 0, fmt.Errorf("port %q", text)
	}
	var port uint32
	for _, r := range []byte(text) {
		if r < '0' || r > '9' {
			return 0, fmt.Errorf("port %q", text)
		}
		port = port*10 + uint32(r-'0')
	}
	if port == 0 || port > 65535 {
		return 0, fmt.Errorf("port %q", text)
	}
	return uint16(port), nil
}

// checkHost refuses what no resolver should be asked for.
func checkHost(host string) error {
	if host == "" || len(host) > 255 {
		return fmt.Errorf("host %q: want 1 to 255 characters", host)
	}
	for _, r := range []byte(host) {
		// Zones (%) would choose an interface of the node.
		if r <= ' ' || r == 0x7f || r == '%' || r == '@' || r == '/' || r == '\\' || r == '?' || r == '#' {
			return fmt.Errorf("host %q: character %q is not part of a host name", host, r)
		}
	}
	return nil
}

// ipOf is the address of a TCP peer.
func ipOf(addr net.Addr) netip.Addr {
	tcp, ok := addr.(*net.TCPAddr)
	if !ok {
		return netip.Addr{}
	}
	ip, _ := netip.AddrFromSlice(tcp.IP)
	return ip.WithZone("").Unmap()
}
