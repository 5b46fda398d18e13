package dial

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/egress-proxies/egress/provider"
)

// Defaults of Target.
const (
	// DefaultHandshakeTimeout bounds connecting and the SSH handshake: a host
	// that is up answers within a second, one under heavy load within ten.
	DefaultHandshakeTimeout = 15 * time.Second
	// DefaultKeepalive finds a dead link in half a minute, and is rare enough
	// to cost nothing. Stateful firewalls forget idle connections after
	// minutes.
	DefaultKeepalive = 15 * time.Second
)

// Target is a host and what is needed to be let in.
type Target struct {
	// Address says where the host is.
	Address Address
	// KeyFile is the private key for SSH, without a passphrase.
	KeyFile string
	// KnownHostsFile holds the keys that the SSH server may have.
	KnownHostsFile string
	// InsecureHostKey takes any host key: whoever answers is believed.
	InsecureHostKey bool
	// HandshakeTimeout of zero is DefaultHandshakeTimeout.
	HandshakeTimeout time.Duration
	// Keepalive is the interval of keepalives; zero is DefaultKeepalive.
	Keepalive time.Duration
}

func (t Target) handshakeTimeout() time.Duration {
	if t.HandshakeTimeout == 0 {
		return DefaultHandshakeTimeout
	}
	return t.HandshakeTimeout
}

// Link is a way to a host that stands: an SSH connection, or nothing at all
// for a local socket. Many connections to the libvirt socket share it.
type Link struct {
	target Target
	client *ssh.Client // nil for a local socket
	done   chan struct{}
	wait   sync.WaitGroup
	cancel context.CancelFunc
}

// Connect makes a link. It reads the SSH material anew. Errors are *Error.
func Connect(ctx context.Context, t Target) (*Link, error) {
	if t.Keepalive == 0 {
		t.Keepalive = DefaultKeepalive
	}
	alive, cancel := context.WithCancel(context.WithoutCancel(ctx))
	l := &Link{target: t, done: make(chan struct{}), cancel: cancel}
	if t.Address.SSH == "" {
		l.wait.Go(func() {
			defer close(l.done)
			<-alive.Done()
		})
		return l, nil
	}
	client, err := handshake(ctx, t)
	if err != nil {
		cancel()
		return nil, err
	}
	l.client = client
	l.wait.Go(func() { l.keepalive(alive) })
	l.wait.Go(func() {
		defer close(l.done)
		_ = client.Wait() // how it ended is told by whatever used it
		cancel()
	})
	return l, nil
}

func handshake(ctx context.Context, t Target) (*ssh.Client, error) {
	config, err := clientConfig(t)
	if err != nil {
		return nil, err
	}
	deadline := time.Now().Add(t.handshakeTimeout())
	dialer := net.Dialer{Deadline: deadline}
	conn, err := dialer.DialContext(ctx, "tcp", t.Address.SSH)
	if err != nil {
		return nil, fail(provider.Unreachable, provider.Transientf("ssh %s: %w", t.Address.SSH, err))
	}
	// The handshake knows no context: ending ctx closes the connection under it.
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	_ = conn.SetDeadline(deadline)
	sshConn, channels, requests, err := ssh.NewClientConn(conn, t.Address.SSH, config)
	if err != nil {
		stop()
		return nil, errors.Join(handshakeError(ctx, t, err), ignoreClosed(conn.Close()))
	}
	client := ssh.NewClient(sshConn, channels, requests)
	if !stop() {
		return nil, errors.Join(handshakeError(ctx, t, ctx.Err()), ignoreClosed(client.Close()))
	}
	_ = conn.SetDeadline(time.Time{})
	return client, nil
}

// ignoreClosed drops the error of closing what is closed already.
func ignoreClosed(err error) error {
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

// keepalive asks the server for an answer once in an interval and ends the
// link when none came until the next: a dead link is seen within two.
func (l *Link) keepalive(ctx context.Context) {
	ticker := time.NewTicker(l.target.Keepalive)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		answered := make(chan struct{})
		l.wait.Go(func() {
			// Any answer will do, also "unknown request".
			if _, _, err := l.client.SendRequest("keepalive@openssh.com", true, nil); err == nil {
				close(answered)
			}
		})
		select {
		case <-ctx.Done():
			return
		case <-answered:
		case <-ticker.C:
			_ = l.client.Close() // Done tells; closing a dead link has no other news
			return
		}
	}
}

// Open makes a new connection to the libvirt socket. Errors are *Error.
func (l *Link) Open(ctx context.Context) (net.Conn, error) {
	if l.client == nil {
		var dialer net.Dialer
		conn, err := dialer.DialContext(ctx, "unix", l.target.Address.Socket)
		if err != nil {
			return nil, localError(l.target.Address.Socket, err)
		}
		return conn, nil
	}
	conn, err := l.client.DialContext(ctx, "unix", l.target.Address.Socket)
	if err != nil {
		return nil, socketError(l.target, err)
	}
	return conn, nil
}

// Done is closed when the link is gone, by Close or by itself.
func (l *Link) Done() <-chan struct{} { return l.done }

// Close ends the link and every connection on it, and waits for its helpers.
func (l *Link) Close() {
	l.cancel()
	if l.client != nil {
		_ = l.client.Close() // it may be dead already
	}
	l.wait.Wait()
}
