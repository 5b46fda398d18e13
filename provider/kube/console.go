package kube

import (
	"context"
	"errors"
	"io"

	corev1 "k8s.io/api/core/v1"

	"github.com/egress-proxies/egress/provider"
)

// Console follows the log of the container. The API has no offsets: what the
// caller knows already is read again and dropped. A node begins a new log file
// after about 10 MiB and gives the newest; a file shorter than the offset is
// such a one, and is told from its beginning.
func (p *Provider) Console(ctx context.Context, ref provider.Ref, offset int64) (io.ReadCloser, error) {
	if err := provider.CheckName(ref.Name); err != nil {
		return nil, err
	}
	options := &corev1.PodLogOptions{Container: container, Follow: true}
	if offset < 0 {
		options.TailLines = new(int64(0))
	}
	if offset > 0 {
		kept, err := p.logged(ctx, ref, offset)
		if err != nil {
			return nil, err
		}
		if kept < offset {
			offset = 0
		}
	}
	stream, err := p.openLog(ctx, ref, options)
	if err != nil {
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

// logged is how much of the log the node has, counted up to enough.
func (p *Provider) logged(ctx context.Context, ref provider.Ref, enough int64) (int64, error) {
	stream, err := p.openLog(ctx, ref, &corev1.PodLogOptions{Container: container, LimitBytes: &enough})
	if err != nil {
		return 0, err
	}
	defer stream.Close()
	kept, err := io.Copy(io.Discard, stream)
	if err != nil {
		return 0, translate(err, "read the log of pod %s/%s", p.settings.Namespace, ref.Name)
	}
	return kept, nil
}

func (p *Provider) openLog(ctx context.Context, ref provider.Ref, options *corev1.PodLogOptions) (io.ReadCloser, error) {
	api, err := p.client.get()
	if err != nil {
		return nil, err
	}
	stream, err := api.CoreV1().Pods(p.settings.Namespace).GetLogs(ref.Name, options).Stream(ctx)
	if err == nil {
		return stream, nil
	}
	err = translate(err, "read the log of pod %s/%s", p.settings.Namespace, ref.Name)
	if errors.Is(err, provider.ErrNotFound) {
		return nil, err
	}
	// The API calls it a bad request while the container is made.
	if instance, getErr := p.Get(ctx, ref); getErr == nil && instance.State == provider.Provisioning {
		return nil, provider.Transientf("the container of pod %s doesn't run yet: %w", ref.Name, err)
	}
	// The caller asks again at once, and what is wrong with the API or with the
	// role lasts longer than that.
	_ = pause(ctx, p.timing.longest)
	return nil, err
}

// log tells the end of the container from the end of the connection.
type log struct {
	io.ReadCloser
	ctx context.Context // of Console, whose reader ends with it
	p   *Provider
	ref provider.Ref
}

// Read gives io.EOF when the container has ended.
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
