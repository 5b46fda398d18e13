package process

import (
	"context"
	"errors"
	"os"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/egress-proxies/egress/provider"
	"github.com/egress-proxies/egress/provider/process/supervise"
)

// Stop sends SIGTERM, or the task's kill_signal, and returns.
func (p *Provider) Stop(ctx context.Context, ref provider.Ref, signal string) error {
	if signal == "" {
		signal = "SIGTERM"
	}
	number, err := parseSignal(signal)
	if err != nil {
		return err
	}
	dir, err := p.find(ctx, ref)
	if err != nil {
		return err
	}
	snapshot, err := supervise.Inspect(dir)
	if err != nil {
		return provider.Transientf("read the state of %s: %w", ref.Name, err)
	}
	if snapshot.Phase != supervise.Running {
		return nil
	}
	if err := supervise.MarkStopping(dir); err != nil {
		p.log.Warn("the stop could not be recorded", "instance", ref.Name, "error", err)
	}
	p.broadcast()
	if err := snapshot.Run.Child.Signal(number); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return provider.Transientf("stop %s: %w", ref.Name, err)
	}
	return nil
}

// Signal sends any signal to the process.
func (p *Provider) Signal(ctx context.Context, ref provider.Ref, signal string) error {
	number, err := parseSignal(signal)
	if err != nil {
		return err
	}
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
	err = snapshot.Run.Child.Signal(number)
	switch {
	case errors.Is(err, os.ErrProcessDone):
		return provider.NotFoundf("%s does not run", ref.Name)
	case err != nil:
		return provider.Transientf("signal %s: %w", ref.Name, err)
	}
	return nil
}

// parseSignal takes SIGHUP, HUP, sighup and 1.
func parseSignal(text string) (syscall.Signal, error) {
	name := strings.ToUpper(text)
	if !strings.HasPrefix(name, "SIG") {
		name = "SIG" + name
	}
	if number := unix.SignalNum(name); number != 0 {
		return number, nil
	}
	if number, err := strconv.Atoi(text); err == nil && number > 0 && number < 65 {
		return syscall.Signal(number), nil
	}
	return 0, provider.Permanentf("signal %q: want a name such as SIGTERM", text)
}

// broadcast tells the watches of this provider to look again.
func (p *Provider) broadcast() {
	p.mu.Lock()
	defer p.mu.Unlock()
	close(p.changed)
	p.changed = make(chan struct{})
}

// nextChange is closed at the next broadcast.
func (p *Provider) nextChange() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.changed
}
