package virt

import (
	"context"
	"errors"

	"github.com/digitalocean/go-libvirt"

	"github.com/egress-proxies/egress/provider"
	"github.com/egress-proxies/egress/provider/kvm/dial"
)

// session is one connection to the daemon.
type session struct {
	libvirt *libvirt.Libvirt
	wire    *wire
	changes changes
}

// newSession opens the socket and the libvirt driver.
func newSession(ctx context.Context, link *dial.Link, uri libvirt.ConnectURI) (*session, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, openTimeout, errNoAnswer)
	defer cancel()
	conn, err := link.Open(ctx)
	if err != nil {
		return nil, err
	}
	s := &session{wire: &wire{Conn: conn, gone: make(chan struct{})}}
	s.libvirt = libvirt.NewWithDialer(s.wire)
	stop := context.AfterFunc(ctx, s.close)
	err = s.libvirt.ConnectToURI(uri)
	if !stop() {
		err = errors.Join(context.Cause(ctx), err)
	}
	if err == nil {
		return s, nil
	}
	s.close()
	if ctx.Err() != nil {
		return nil, &dial.Error{Reason: provider.Timeout, Err: provider.Transientf("opening %s: %w", uri, err)}
	}
	return nil, &dial.Error{Reason: provider.LibvirtConnectFailed, Err: provider.Transientf("opening %s: %w", uri, err)}
}

// alive is false once the connection broke or was closed.
func (s *session) alive() bool {
	select {
	case <-s.wire.gone:
		return false
	default:
		return true
	}
}

// close ends the connection. It sends no farewell, for which a hung daemon
// would have to be waited for; libvirt cleans up after a closed socket.
func (s *session) close() { _ = s.wire.Close() }
