package dial

import (
	"errors"
	"io/fs"

	"github.com/egress-proxies/egress/provider"
)

// localError says why a socket on this machine could not be opened. A missing
// socket or a refusal is a daemon that is down, which may come back.
func localError(socket string, err error) error {
	if errors.Is(err, fs.ErrPermission) {
		return fail(provider.Forbidden, provider.Permanentf("socket %s: Nomad's user may not open it: add it to the group libvirt: %w", socket, err))
	}
	return fail(provider.LibvirtConnectFailed, provider.Transientf("socket %s: is libvirtd running? %w", socket, err))
}
