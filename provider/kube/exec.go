package kube

import (
	"context"
	"errors"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/httpstream"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/util/exec"

	"github.com/egress-proxies/egress/provider"
)

// Exec runs a command in the container, over a web socket or, with servers
// before 1.30, over SPDY.
func (p *Provider) Exec(ctx context.Context, ref provider.Ref, req provider.ExecRequest) (provider.Exit, error) {
	if err := provider.CheckName(ref.Name); err != nil {
		return provider.Exit{}, err
	}
	executor, err := p.executor(ref, req)
	if err != nil {
		return provider.Exit{}, err
	}
	streams := remotecommand.StreamOptions{Stdin: req.Stdin, Stdout: req.Stdout, Stderr: req.Stderr, Tty: req.TTY}
	if req.TTY {
		streams.Stderr = nil // a terminal has one stream
		if req.Resize != nil {
			streams.TerminalSizeQueue = sizes{ctx, req.Resize}
		}
	}
	err = executor.StreamWithContext(ctx, streams)
	var ended exec.ExitError
	switch {
	case err == nil:
		return provider.Exit{}, nil
	case errors.As(err, &ended) && ended.Exited():
		return provider.Exit{Code: ended.ExitStatus()}, nil
	default:
		return provider.Exit{}, translate(err, "exec in pod %s/%s", p.settings.Namespace, ref.Name)
	}
}

func (p *Provider) executor(ref provider.Ref, req provider.ExecRequest) (remotecommand.Executor, error) {
	api, err := p.client.get()
	if err != nil {
		return nil, err
	}
	config, err := p.client.config()
	if err != nil {
		return nil, err
	}
	url := api.CoreV1().RESTClient().Post().Resource("pods").Namespace(p.settings.Namespace).Name(ref.Name).
		SubResource("exec").VersionedParams(&corev1.PodExecOptions{
		Container: container, Command: req.Command, TTY: req.TTY,
		Stdin: req.Stdin != nil, Stdout: req.Stdout != nil, Stderr: req.Stderr != nil && !req.TTY,
	}, scheme.ParameterCodec).URL()
	socket, err := remotecommand.NewWebSocketExecutor(config, "GET", url.String())
	if err != nil {
		return nil, provider.Permanentf("exec: %w", err)
	}
	spdy, err := remotecommand.NewSPDYExecutor(config, "POST", url)
	if err != nil {
		return nil, provider.Permanentf("exec: %w", err)
	}
	executor, err := remotecommand.NewFallbackExecutor(socket, spdy, func(err error) bool {
		return httpstream.IsUpgradeFailure(err) || httpstream.IsHTTPSProxyError(err)
	})
	if err != nil {
		return nil, provider.Permanentf("exec: %w", err)
	}
	return executor, nil
}

// sizes hands on the sizes of the terminal.
type sizes struct {
	ctx  context.Context // of Exec
	from <-chan provider.TerminalSize
}

// Next blocks until the size changes; nil ends it.
func (s sizes) Next() *remotecommand.TerminalSize {
	select {
	case size, open := <-s.from:
		if open {
			return &remotecommand.TerminalSize{Width: uint16(size.Width), Height: uint16(size.Height)}
		}
	case <-s.ctx.Done():
	}
	return nil
}
