package forward

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"
	"time"
)

// dialer connects to targets, checking each address that it is about to use.
type dialer struct {
	targets *targets
	timeout time.Duration
	network string // tcp, or tcp4 or tcp6 when the source address decides
	net     net.Dialer
}

func newDialer(c Config, own *ownAddresses) *dialer {
	d := &dialer{
		targets: &targets{allowed: c.AllowTargets, own: own},
		timeout: c.DialTimeout,
		network: "tcp",
	}
	d.net.Timeout = c.DialTimeout
	// The pure Go resolver holds no thread while it waits, and takes no number
	// such as 127.1 for an address.
	d.net.Resolver = &net.Resolver{PreferGo: true}
	d.net.ControlContext = d.control
	if c.Bind.IsValid() {
		d.net.LocalAddr = &net.TCPAddr{IP: c.Bind.AsSlice(), Zone: c.Bind.Zone()}
		d.network = "tcp6"
		if c.Bind.Unmap().Is4() {
			d.network = "tcp4"
		}
	}
	return d
}

// ipBindAddressNoPort makes the kernel choose the source port at connect, when
// it knows the target: otherwise a source address has one port for all targets
// (ip(7)).
const ipBindAddressNoPort = 24

// control runs between the making of a socket and its connect.
func (d *dialer) control(_ context.Context, _, address string, raw syscall.RawConn) error {
	target, err := netip.ParseAddrPort(address)
	if err != nil {
		return err
	}
	if err := d.targets.check(target.Addr()); err != nil {
		return err
	}
	if d.net.LocalAddr == nil {
		return nil
	}
	return raw.Control(func(fd uintptr) {
		_ = syscall.SetsockoptInt(int(fd), syscall.IPPROTO_IP, ipBindAddressNoPort, 1) // a saving only
	})
}

// dial connects to host and port; both families are tried as RFC 8305 says.
func (d *dialer) dial(ctx context.Context, host string, port uint16) (*net.TCPConn, error) {
	conn, err := d.DialContext(ctx, "tcp", net.JoinHostPort(host, fmt.Sprint(port)))
	if err != nil {
		return nil, err
	}
	tcp, ok := conn.(*net.TCPConn)
	if !ok {
		return nil, errors.Join(fmt.Errorf("a connection of type %T: want TCP", conn), conn.Close())
	}
	return tcp, nil
}

// DialContext is dial in the form that http.Transport takes.
func (d *dialer) DialContext(ctx context.Context, _, address string) (net.Conn, error) {
	return d.net.DialContext(ctx, d.network, address)
}
