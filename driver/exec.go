package driver

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/nomad/plugins/drivers"

	"github.com/egress-proxies/egress/driver/probe"
	"github.com/egress-proxies/egress/provider"
)

// probeCommand is the command that is no command: the driver probes the proxy,
// as it does all the time, and says what it found.
const probeCommand = "probe"

// probeFailed is the exit code of a probe that failed. Consul takes 1 for a
// warning, under which a service stays in its DNS answers, and everything else
// but 0 for critical (developer.hashicorp.com/consul, script checks).
const probeFailed = 2

// maxExecOutput is what ExecTask keeps of each stream. It answers with one
// message, which gRPC bounds at 4 MiB.
const maxExecOutput = 1 << 20

// ExecTask runs a command in the instance and waits for it, for `check { type =
// "script" }`. The command "probe" probes the proxy: exit code 0 when it works,
// probeFailed when it does not.
func (d *Driver) ExecTask(id string, command []string, timeout time.Duration) (*drivers.ExecTaskResult, error) {
	h := d.store.task(id)
	if h == nil {
		return nil, drivers.ErrTaskNotFound
	}
	ctx, cancel := context.WithCancel(h.ctx)
	if timeout > 0 {
		ctx, cancel = context.WithTimeout(h.ctx, timeout)
	}
	defer cancel()
	var stdout, stderr limitedBuffer
	exit, err := h.exec(ctx, provider.ExecRequest{Command: command, Stdout: &stdout, Stderr: &stderr})
	if err != nil {
		return nil, errors.New(oneLine(err))
	}
	return &drivers.ExecTaskResult{
		Stdout: stdout.Bytes(), Stderr: stderr.Bytes(),
		ExitResult: &drivers.ExitResult{ExitCode: exit.Code, Signal: exit.Signal},
	}, nil
}

// exec runs a command in the instance, or the probe.
func (h *handle) exec(ctx context.Context, request provider.ExecRequest) (provider.Exit, error) {
	if len(request.Command) == 0 {
		return provider.Exit{}, errors.New("no command was given")
	}
	if len(request.Command) == 1 && request.Command[0] == probeCommand {
		return h.execProbe(ctx, request)
	}
	execer, ok := h.place.Provider.(provider.Execer)
	if !ok {
		return provider.Exit{}, fmt.Errorf("command %q: provider %q (type %s) runs no commands in its instances: want %q",
			request.Command[0], h.place.name, h.place.kind, probeCommand)
	}
	return execer.Exec(ctx, h.ref(), request)
}

func (h *handle) execProbe(ctx context.Context, request provider.ExecRequest) (provider.Exit, error) {
	verdict, err := h.probeOnce(ctx)
	if err != nil {
		return provider.Exit{}, fmt.Errorf("probe: %w", err)
	}
	_, err = fmt.Fprintln(request.Stdout, describeVerdict(verdict))
	exit := provider.Exit{}
	if !verdict.OK {
		exit.Code = probeFailed
	}
	return exit, err
}

func describeVerdict(verdict probe.Verdict) string {
	text := verdict.Message
	if verdict.Latency > 0 {
		text += fmt.Sprintf(" (%v)", verdict.Latency.Round(time.Millisecond))
	}
	if verdict.ExitIP.IsValid() {
		text += ", exit address " + verdict.ExitIP.String()
	}
	return text
}

// SignalTask sends a signal to the proxy.
func (d *Driver) SignalTask(id string, signal string) error {
	h := d.store.task(id)
	if h == nil {
		return drivers.ErrTaskNotFound
	}
	signaler, ok := h.place.Provider.(provider.Signaler)
	if !ok {
		return fmt.Errorf("signal %q: provider %q (type %s) sends no signals to its instances", signal, h.place.name, h.place.kind)
	}
	ctx, cancel := context.WithTimeout(h.ctx, d.timing.get)
	defer cancel()
	return signaler.Signal(ctx, h.ref(), signal)
}

// limitedBuffer keeps the first maxExecOutput bytes and swallows the rest.
type limitedBuffer struct{ bytes.Buffer }

func (b *limitedBuffer) Write(p []byte) (int, error) {
	if room := maxExecOutput - b.Len(); len(p) > room {
		b.Buffer.Write(p[:max(room, 0)])
		return len(p), nil
	}
	return b.Buffer.Write(p)
}
