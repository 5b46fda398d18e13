package forward

import (
	"errors"
	"net"
	"net/netip"
	"testing"
	"time"
)

func testTargets(allowed ...string) *targets {
	return &targets{allowed: parsePrefixes(allowed...), own: &ownAddresses{
		now: time.Now,
		list: func() ([]net.Addr, error) {
			return []net.Addr{&net.IPNet{IP: net.ParseIP("93.184.215.14"), Mask: net.CIDRMask(24, 32)}}, nil
		},
	}}
}

func TestRefusedTargets(t *testing.T) {
	for _, test := range []struct {
		addr, what string
	}{
		{"0.0.0.0", "this network"}, {"10.1.2.3", "private"}, {"100.64.0.1", "carrier NAT"},
		{"127.0.0.1", "loopback"}, {"169.254.169.254", "metadata service"}, {"172.31.255.255", "private"},
		{"192.168.0.1", "private"}, {"198.18.0.1", "benchmarks"}, {"224.0.0.1", "multicast"},
		{"255.255.255.255", "broadcast"}, {"::", "unspecified"}, {"::1", "loopback"},
		{"::127.0.0.1", "IPv4-compatible"}, {"::ffff:127.0.0.1", "IPv4-mapped loopback"},
		{"::ffff:10.0.0.1", "IPv4-mapped private"}, {"64:ff9b::7f00:1", "NAT64 of loopback"},
		{"64:ff9b::a00:1", "NAT64 of 10.0.0.1"}, {"64:ff9b:1::1", "local NAT64"},
		{"2002:7f00:1::", "6to4 of loopback"}, {"2001:0:1::1", "Teredo"}, {"fc00::1", "unique local"},
		{"fd00:ec2::254", "metadata service"}, {"fe80::1", "link-local"}, {"fe80::1%lo", "link-local with a zone"},
		{"fec0::1", "site-local"}, {"ff02::1", "multicast"}, {"93.184.215.14", "the node's own"},
		{"::ffff:93.184.215.14", "the node's own, mapped"}, {"64:ff9b::5db8:d70e", "the node's own through NAT64"},
	} {
		var refused *refusal
		if err := testTargets().check(netip.MustParseAddr(test.addr)); !errors.As(err, &refused) {
			t.Errorf("%s (%s): %v, want it refused", test.addr, test.what, err)
		}
	}
}

func TestAllowedTargets(t *testing.T) {
	for _, test := range []struct {
		addr    string
		allowed []string
	}{
		{"1.1.1.1", nil}, {"2606:4700:4700::1111", nil}, {"::ffff:1.1.1.1", nil}, {"64:ff9b::101:101", nil},
		{"172.32.0.1", nil}, {"100.128.0.1", nil}, {"93.184.215.15", nil},
		{"127.0.0.1", []string{"127.0.0.0/8"}}, {"::ffff:127.0.0.1", []string{"127.0.0.0/8"}},
		{"64:ff9b::a00:1", []string{"10.0.0.0/8"}}, {"93.184.215.14", []string{"93.184.215.14/32"}},
	} {
		if err := testTargets(test.allowed...).check(netip.MustParseAddr(test.addr)); err != nil {
			t.Errorf("%s with %v allowed: %v, want it allowed", test.addr, test.allowed, err)
		}
	}
}

func TestOwnAddressesAreReadAgain(t *testing.T) {
	now := time.Unix(0, 0)
	addrs := []net.Addr{}
	own := &ownAddresses{now: func() time.Time { return now }, list: func() ([]net.Addr, error) { return addrs, nil }}
	added := netip.MustParseAddr("93.184.215.14")
	if own.contains(added) {
		t.Fatal("contained before it was added")
	}
	addrs = append(addrs, &net.IPNet{IP: added.AsSlice(), Mask: net.CIDRMask(24, 32)})
	now = now.Add(ownAddressesAge + time.Second)
	if !own.contains(added) {
		t.Error("an address that was added to the node is still not guarded")
	}
}

func FuzzParseTarget(f *testing.F) {
	for _, seed := range []string{"example.com:443", "[::1]:80", "[fe80::1%eth0]:80", "a:b:c", ":80", "a:00080", "a:65536", "[]:1", "u@h:1", "a b:1"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, authority string) {
		host, port, err := parseTarget(authority)
		if err != nil {
			return
		}
		if port == 0 || host == "" {
			t.Fatalf("%q: host %q port %d", authority, host, port)
		}
		for _, r := range []byte(host) {
			if r <= ' ' || r == '%' || r == '@' || r == '/' {
				t.Fatalf("%q: host %q", authority, host)
			}
		}
	})
}
