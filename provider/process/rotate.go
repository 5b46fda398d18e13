package process

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"syscall"
	"time"

	"github.com/egress-proxies/egress/provider"
	"github.com/egress-proxies/egress/provider/process/forward"
	"github.com/egress-proxies/egress/provider/process/supervise"
)

var _ provider.Rotator = (*Provider)(nil)

// rotateTime bounds an exchange with a proxy of this node.
const rotateTime = 5 * time.Second

// Rotate gives the built-in proxy of an instance other credentials, over a
// socket in the instance's directory. Its tunnels go on.
func (p *Provider) Rotate(ctx context.Context, ref provider.Ref, auth provider.Credentials) error {
	dir, err := p.find(ctx, ref)
	if err != nil {
		return err
	}
	snapshot, err := supervise.Inspect(dir)
	if err != nil {
		return provider.Transientf("read the state of %s: %w", ref.Name, err)
	}
	if snapshot.Phase != supervise.Running {
		return provider.NotFoundf("%s does not run", ref.Name)
	}
	return rotate(ctx, dir, snapshot.Plan, auth)
}

func rotate(ctx context.Context, dir string, plan supervise.Plan, auth provider.Credentials) error {
	switch {
	case !plan.Self:
		return provider.Permanentf("command %q got its credentials when it was started", plan.Path)
	case !plan.Control:
		return provider.Permanentf("it was started by an earlier version of egress")
	}
	ctx, cancel := context.WithTimeout(ctx, rotateTime)
	defer cancel()
	var conn net.Conn
	err := supervise.AtControl(dir, func(path string) (err error) {
		conn, err = new(net.Dialer).DialContext(ctx, "unix", path)
		return err
	})
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED):
		return provider.NotFoundf("the proxy has ended: %w", err)
	case err != nil:
		return provider.Transientf("reach the proxy: %w", err)
	}
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })()
	if err := forward.Rotate(conn, auth.Username, auth.Password); err != nil {
		return provider.Transientf("the proxy did not take the credentials: %w", err)
	}
	return nil
}
