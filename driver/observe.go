package driver

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"syscall"
	"time"

	"github.com/hashicorp/nomad/plugins/drivers"

	"github.com/egress-proxies/egress/provider"
)

// observe follows the instance to its end. It alone sets the result and closes
// done. When the plugin closes, the task has no result: it goes on, and the
// next plugin recovers it.
func (h *handle) observe() {
	result := h.follow()
	if result == nil {
		return
	}
	h.finish(result)
	h.deregister(context.WithoutCancel(h.ctx))
	h.drainLogs()
	h.stopLogs()
}

// finish makes the end known.
func (h *handle) finish(result *drivers.ExitResult) {
	h.mu.Lock()
	h.result, h.completedAt = result, time.Now()
	close(h.done)
	if h.leave != nil {
		h.leave()
	}
	h.mu.Unlock()
	h.stopProbing()
	h.logger.Info("instance ended", "instance", h.ref().String(), "exit_code", result.ExitCode,
		"signal", result.Signal, "reason", result.Err)
}

// follow returns how the instance ended, or nil when the plugin closes.
func (h *handle) follow() *drivers.ExitResult {
	watcher, watches := h.place.Provider.(provider.Watcher)
	failures := 0
	for {
		if h.ctx.Err() != nil {
			return h.interrupted()
		}
		if watches {
			if result := h.watch(watcher); result != nil || h.ctx.Err() != nil {
				return h.or(result)
			}
		}
		result, err := h.poll()
		switch {
		case result != nil:
			return result
		case err == nil:
			failures = 0
		case h.ctx.Err() == nil:
			failures++
			if failures == 1 {
				h.logger.Warn("state of the instance is unknown, asking again", "instance", h.ref().String(), "error", err)
			}
		}
		h.pause(failures)
	}
}

// watch follows a provider that pushes until the watch breaks.
func (h *handle) watch(watcher provider.Watcher) *drivers.ExitResult {
	ctx, cancel := context.WithCancel(h.ctx)
	defer cancel()
	changes, err := watcher.Watch(ctx, h.ref())
	if err != nil {
		h.logger.Debug("no watch of the instance, polling", "instance", h.ref().String(), "error", err)
		return nil
	}
	var result *drivers.ExitResult
	for instance := range changes {
		if result != nil {
			continue // until the provider closes the channel: it must not wait for us
		}
		if result = h.see(instance); result != nil {
			cancel()
		}
	}
	return result
}

// poll asks for the state once. Only a definite answer that nothing is there
// ends the task: any other error leaves its state unknown.
func (h *handle) poll() (*drivers.ExitResult, error) {
	ctx, cancel := context.WithTimeout(h.ctx, h.timing.get)
	defer cancel()
	instance, err := h.place.Get(ctx, h.ref())
	switch {
	case err == nil:
		return h.see(instance), nil
	case errors.Is(provider.Classify(err), provider.ErrNotFound):
		return h.see(provider.Instance{State: provider.Stopped, Reason: "it is gone: somebody deleted it"}), nil
	default:
		return nil, err
	}
}

// see takes a state in; the result is nil unless the instance has ended.
func (h *handle) see(instance provider.Instance) *drivers.ExitResult {
	if instance.State == provider.Unknown {
		return nil
	}
	h.update(instance)
	if instance.State != provider.Stopped {
		return nil
	}
	return h.exitResult(instance)
}

// exitResult translates the end of an instance.
func (h *handle) exitResult(instance provider.Instance) *drivers.ExitResult {
	h.mu.Lock()
	stopping, forced := h.stopping, h.forced
	h.mu.Unlock()
	if forced != nil && (instance.Exit == nil || instance.Exit.Signal == int(syscall.SIGKILL)) {
		return endedBy(forced) // The provider can't tell who deleted it.
	}
	result := &drivers.ExitResult{}
	if instance.Exit != nil {
		result.ExitCode, result.Signal, result.OOMKilled = instance.Exit.Code, instance.Exit.Signal, instance.Exit.OOMKilled
	}
	clean := instance.Exit != nil && result.Successful()
	if stopping && (clean || instance.Exit == nil) {
		return result
	}
	if clean && instance.Reason == "" {
		return result
	}
	if instance.Exit == nil {
		// How it ended is unknown, but an end that nobody asked for isn't success.
		result.ExitCode = 1
	}
	reason := instance.Reason
	if reason == "" {
		reason = "it ended by itself"
	}
	result.Err = fmt.Errorf("instance %s: %s", h.ref().Name, reason)
	return result
}

// interrupted is the result when ctx has ended: none when the plugin closes.
func (h *handle) interrupted() *drivers.ExitResult {
	cause := context.Cause(h.ctx)
	if errors.Is(cause, errClosing) {
		return nil
	}
	return endedBy(cause)
}

// endedBy is the result of an instance that the driver deleted while it ran.
func endedBy(cause error) *drivers.ExitResult {
	if errors.Is(cause, errStopped) {
		return &drivers.ExitResult{}
	}
	return &drivers.ExitResult{ExitCode: 137, Signal: 9, Err: cause}
}

func (h *handle) or(result *drivers.ExitResult) *drivers.ExitResult {
	if result != nil {
		return result
	}
	return h.interrupted()
}

// pause waits before the next question: briefly until the address is known,
// longer the more often there was no answer, with jitter so that the tasks of a
// node don't ask in step.
func (h *handle) pause(failures int) {
	wait := h.timing.poll
	if instance, _ := h.snapshot(); instance.Address == "" {
		wait = h.timing.pollStart
	}
	if failures > 0 {
		wait = min(h.timing.pollStart<<min(failures, 16), h.timing.pollMax)
	}
	timer := time.NewTimer(wait + rand.N(wait/5+1))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-h.ctx.Done():
	}
}

// deregister takes the endpoint out of Consul within a bound; the registrar
// goes on by itself when Consul does not answer.
func (h *handle) deregister(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, h.timing.deregister)
	defer cancel()
	if err := h.registrar.Deregister(ctx, h.ref().Name); err != nil {
		h.logger.Warn("not deregistered yet, going on in the background", "instance", h.ref().Name, "error", err)
	}
}
