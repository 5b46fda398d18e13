package kube

import (
	"context"
	"errors"
	"io"

	corev1 "k8s.io/api/core/v1"

	"github.com/egress-proxies/egress/provider"
)

// Console follows the log of the container. The API has no offsets: what the
// caller knows already is read again and dropped. Nodes keep about 10 MiB.
func (p *Provider) Console(ctx context.Context, ref provider.Ref, offset int64) (io.ReadCloser, error) {
	if err := provider.CheckName(ref.Name); err != nil {
		return nil, err
	}
	api, err := p.client.get(p.settings)
	if err != nil {
		return nil, err
	}
	options := &corev1.PodLogOptions{Container: container, Follow: true}
	if offset < 0 {
		options.TailLines = new(int64(0))
	}
	stream, err := api.CoreV1().Pods(p.settings.Namespace).GetLogs(ref.Name, options).Stream(ctx)
	if err != nil {
		err = translate(err, "follow the log of pod %s/%s", p.settings.Namespace, ref.Name)
		if provider.Classify(err) == provider.ErrPermanent {
			// The API calls it a bad request while the container is made.
			if instance, getErr := p.Get(ctx, ref); getErr == nil && instance.State == provider.Provisioning {
				return nil, provider.Transientf("the container of pod %s doesn't run yet: %w", ref.Name, err)
			}
		}
		return nil, err
	}
	log := &log{ReadCloser: stream, ctx: ctx, p: p, ref: ref}
	if offset > 0 {
		if _, err := io.CopyN(io.Discard, log, offset); err != nil && !errors.Is(err, io.EOF) {
			return nil, errors.Join(err, stream.Close())
		}
	}
	return log, nil
}

// log tells the end of the container from the end of the connection.
type log struct {
	io.ReadCloser
	ctx context.Context // of Console, whose reader ends with it
	p   *Provider
	ref provider.Ref
}

func (l *log) Read(b []byte) (int, error) {
	n, err := l.ReadCloser.Read(b)
	if err == nil {
		return n, nil
	}
	if l.ctx.Err() != nil {
		return n, l.ctx.Err()
	}
	instance, getErr := l.p.Get(l.ctx, l.ref)
	if getErr == nil && (instance.State == provider.Running || instance.State == provider.Unknown) {
		return n, provider.Transientf("the log of pod %s broke off: %w", l.ref.Name, err)
	}
	if getErr != nil && !errors.Is(getErr, provider.ErrNotFound) {
		return n, getErr
	}
	return n, io.EOF
}
