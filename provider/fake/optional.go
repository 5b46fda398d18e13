package fake

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"sync"
	"time"

	"github.com/egress-proxies/egress/provider"
)

// Stop notes the signal and, unless the instance was told to ignore it, ends
// the instance.
func (p *Provider) Stop(ctx context.Context, ref provider.Ref, signal string) error {
	if err := p.pass(ctx, StepStop); err != nil {
		return err
	}
	if signal == "" {
		signal = "SIGTERM"
	}
	p.world.change(ref.Name, func(e *entry) { e.signals = append(e.signals, signal) })
	if !p.ignoresStop(ref.Name) {
		p.world.End(ref.Name, provider.Exit{}, "")
	}
	return nil
}

// IgnoreStop makes instances go on after Stop, as a guest without ACPI.
func (p *Provider) IgnoreStop() { p.Fail(stepIgnoreStop, -1, errIgnored) }

const stepIgnoreStop Step = "ignore-stop"

var errIgnored = fmt.Errorf("fake: stop is ignored")

func (p *Provider) ignoresStop(string) bool {
	return p.pass(context.Background(), stepIgnoreStop) != nil
}

// Signal notes the signal.
func (p *Provider) Signal(_ context.Context, ref provider.Ref, signal string) error {
	if !p.world.change(ref.Name, func(e *entry) { e.signals = append(e.signals, signal) }) {
		return provider.NotFoundf("instance %q: nothing of that name", ref)
	}
	return nil
}

// Rotate notes the credentials.
func (p *Provider) Rotate(ctx context.Context, ref provider.Ref, auth provider.Credentials) error {
	if err := p.pass(ctx, StepRotate); err != nil {
		return err
	}
	if !p.world.change(ref.Name, func(e *entry) { e.auths = append(e.auths, auth) }) {
		return provider.NotFoundf("instance %q: nothing of that name", ref)
	}
	return nil
}

// Watch sends the instance now and at every change.
func (p *Provider) Watch(ctx context.Context, ref provider.Ref) (<-chan provider.Instance, error) {
	if err := p.pass(ctx, StepWatch); err != nil {
		return nil, err
	}
	changes := make(chan provider.Instance)
	go func() {
		defer close(changes)
		for {
			found, ok := p.world.look(ref.Name)
			if !ok {
				found.instance = provider.Instance{Ref: ref, State: provider.Stopped, Reason: "the instance is gone"}
				found.changed = nil
			}
			select {
			case changes <- found.instance:
			case <-ctx.Done():
				return
			}
			if !ok {
				return
			}
			select {
			case <-found.changed:
			case <-ctx.Done():
				return
			}
		}
	}()
	return changes, nil
}

// Console follows what World.Print wrote.
func (p *Provider) Console(ctx context.Context, ref provider.Ref, offset int64) (io.ReadCloser, error) {
	if _, ok := p.world.look(ref.Name); !ok {
		return nil, provider.NotFoundf("instance %q: nothing of that name", ref)
	}
	ctx, cancel := context.WithCancel(ctx)
	return &console{ctx: ctx, cancel: cancel, world: p.world, name: ref.Name, offset: offset}, nil
}

type console struct {
	ctx    context.Context
	cancel context.CancelFunc
	world  *World
	name   string
	offset int64
}

func (c *console) Read(buffer []byte) (int, error) {
	for {
		found, ok := c.world.look(c.name)
		if !ok {
			return 0, io.EOF
		}
		if c.offset < 0 {
			c.offset = int64(len(found.output))
		}
		if rest := found.output[min(c.offset, int64(len(found.output))):]; len(rest) > 0 {
			n := copy(buffer, rest)
			c.offset += int64(n)
			return n, nil
		}
		if found.instance.State == provider.Stopped {
			return 0, io.EOF
		}
		select {
		case <-found.changed:
		case <-c.ctx.Done():
			return 0, c.ctx.Err()
		}
	}
}

func (c *console) Close() error {
	c.cancel()
	return nil
}

// Exec echoes the command; the command "exit N" ends with N.
func (p *Provider) Exec(ctx context.Context, ref provider.Ref, req provider.ExecRequest) (provider.Exit, error) {
	if err := p.pass(ctx, StepExec); err != nil {
		return provider.Exit{}, err
	}
	if _, ok := p.world.look(ref.Name); !ok {
		return provider.Exit{}, provider.NotFoundf("instance %q: nothing of that name", ref)
	}
	if len(req.Command) == 2 && req.Command[0] == "exit" {
		var code int
		_, err := fmt.Sscan(req.Command[1], &code)
		return provider.Exit{Code: code}, err
	}
	_, err := fmt.Fprintln(req.Stdout, req.Command)
	return provider.Exit{}, err
}

// Stats grow with the time that has passed since the instance was made.
func (p *Provider) Stats(ctx context.Context, ref provider.Ref) (provider.Stats, error) {
	if err := p.pass(ctx, StepStats); err != nil {
		return provider.Stats{}, err
	}
	found, ok := p.world.look(ref.Name)
	if !ok {
		return provider.Stats{}, provider.NotFoundf("instance %q: nothing of that name", ref)
	}
	now := time.Now()
	return provider.Stats{At: now, CPUTime: now.Sub(found.instance.CreatedAt) / 10, MemoryBytes: 64 << 20}, nil
}

// Check finds every zone ready, unless the step "check/<zone>" was told to fail.
// A zone that is held times out, and none waits for another.
func (p *Provider) Check(ctx context.Context) []provider.Verdict {
	verdicts := make([]provider.Verdict, len(p.options.Zones))
	var wg sync.WaitGroup
	for i, zone := range p.options.Zones {
		wg.Go(func() { verdicts[i] = p.checkZoneHealth(ctx, zone) })
	}
	wg.Wait()
	return verdicts
}

func (p *Provider) checkZoneHealth(ctx context.Context, zone string) provider.Verdict {
	start := time.Now()
	verdict := provider.Verdict{Target: zone, Ready: true, Reason: provider.Reachable, Facts: p.facts(zone)}
	if err := p.pass(ctx, Step("check/"+zone)); err != nil {
		verdict = provider.Verdict{Target: zone, Reason: provider.Unreachable, Message: err.Error()}
		var reason reasonError
		switch {
		case errors.As(err, &reason):
			verdict.Reason = reason.reason
		case provider.IsCanceled(err):
			verdict.Reason = provider.Timeout
		}
	}
	verdict.Latency = time.Since(start)
	return verdict
}

// Because is an error that makes Check give the reason, when the step
// "check/<zone>" is told to fail with it.
func Because(reason provider.Reason, message string) error { return reasonError{reason, message} }

type reasonError struct {
	reason  provider.Reason
	message string
}

func (e reasonError) Error() string { return e.message }

// SetFacts sets what Check learns of a zone from now on.
func (p *Provider) SetFacts(zone string, facts map[string]string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.zoneFacts[zone] = maps.Clone(facts)
}

func (p *Provider) facts(zone string) map[string]string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return maps.Clone(p.zoneFacts[zone])
}
