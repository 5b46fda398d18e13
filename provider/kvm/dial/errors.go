package dial

import (
	"context"
	"errors"
	"net"
	"strings"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/knownhosts"

	"github.com/egress-proxies/egress/provider"
)

// Error is a failure to reach a host, with the one word that a health check
// reports for it. Err has an error class of package provider.
type Error struct {
	// Reason is one of provider's reasons.
	Reason provider.Reason
	// Err is what happened and what to do.
	Err error
}

// Error is the text of Err.
func (e *Error) Error() string { return e.Err.Error() }

// Unwrap gives Err.
func (e *Error) Unwrap() error { return e.Err }

func fail(reason provider.Reason, err error) error { return &Error{Reason: reason, Err: err} }

// handshakeError says why an SSH handshake failed. What a person must change
// is permanent; a server that is starting or overloaded is transient.
func handshakeError(ctx context.Context, t Target, err error) error {
	var key *knownhosts.KeyError
	var revoked *knownhosts.RevokedError
	var timeout net.Error
	switch {
	case errors.As(err, &key) && len(key.Want) == 0:
		return fail(provider.SSHHandshakeFailed, provider.Permanentf(
			"ssh %s: the host key is not in %s: add the line that ssh-keyscan prints, after checking it: %w", t.Address.SSH, t.KnownHostsFile, err))
	case errors.As(err, &key):
		return fail(provider.SSHHandshakeFailed, provider.Permanentf(
			"ssh %s: the host key has changed and is not the one in %s: find out why, then replace the line: %w", t.Address.SSH, t.KnownHostsFile, err))
	case errors.As(err, &revoked):
		return fail(provider.SSHHandshakeFailed, provider.Permanentf("ssh %s: the host key is revoked in %s: %w", t.Address.SSH, t.KnownHostsFile, err))
	case strings.Contains(err.Error(), "unable to authenticate"):
		return fail(provider.Unauthorized, provider.Permanentf(
			"ssh %s: user %s is not let in with the key %s: is its public half in the user's authorized_keys? %w", t.Address.SSH, t.Address.User, t.KeyFile, err))
	case ctx.Err() != nil:
		return fail(provider.Timeout, provider.Transientf("ssh %s: handshake: %w", t.Address.SSH, context.Cause(ctx)))
	case errors.As(err, &timeout) && timeout.Timeout():
		return fail(provider.SSHHandshakeFailed, provider.Transientf(
			"ssh %s: the server did not finish the handshake within %s: %w", t.Address.SSH, t.handshakeTimeout(), err))
	default:
		return fail(provider.SSHHandshakeFailed, provider.Transientf("ssh %s: handshake: %w", t.Address.SSH, err))
	}
}

// socketError says why the SSH server did not connect us to the libvirt socket.
func socketError(t Target, err error) error {
	var refused *ssh.OpenChannelError
	if errors.As(err, &refused) && refused.Reason == ssh.Prohibited {
		return fail(provider.Forbidden, provider.Permanentf(
			"ssh %s: forwarding to %s is refused: set AllowStreamLocalForwarding yes in sshd_config: %w", t.Address.SSH, t.Address.Socket, err))
	}
	if errors.As(err, &refused) {
		return fail(provider.LibvirtConnectFailed, provider.Transientf(
			"ssh %s: the socket %s does not answer: is libvirtd running, and may %s open it (group libvirt)? %w", t.Address.SSH, t.Address.Socket, t.Address.User, err))
	}
	return fail(provider.Unreachable, provider.Transientf("ssh %s: opening %s: %w", t.Address.SSH, t.Address.Socket, err))
}
