package driver

import (
	"context"
	"fmt"

	"github.com/egress-proxies/egress/driver/probe"
	"github.com/egress-proxies/egress/driver/registry"
	"github.com/egress-proxies/egress/provider"
)

// prober probes one proxy; *probe.Prober is one.
type prober interface {
	Once(ctx context.Context) probe.Verdict
	Await(ctx context.Context, onVerdict func(probe.Verdict)) (probe.Verdict, error)
	Run(ctx context.Context, initial probe.Verdict, callbacks probe.Callbacks)
	SetCredentials(username, password string) error
}

type proberFactory func(config probe.Config, proxy probe.Proxy) (prober, error)

// registrar publishes endpoints; *registry.Registry is one.
type registrar interface {
	Register(endpoint registry.Endpoint, verdict probe.Verdict) error
	Update(name string, verdict probe.Verdict)
	Deregister(ctx context.Context, name string) error
	Reconcile(ctx context.Context, owned ...string) (removed []string, err error)
	Close(ctx context.Context) error
}

// unregistered stands in where the plugin's config has Consul off.
type unregistered struct{}

func (unregistered) Register(registry.Endpoint, probe.Verdict) error        { return nil }
func (unregistered) Update(string, probe.Verdict)                           {}
func (unregistered) Deregister(context.Context, string) error               { return nil }
func (unregistered) Reconcile(context.Context, ...string) ([]string, error) { return nil, nil }
func (unregistered) Close(context.Context) error                            { return nil }

// notProbed is the verdict of a proxy whose probe is off.
var notProbed = probe.Verdict{OK: true, Message: "not probed"}

// publish probes and registers from now on: the loop of every task that runs.
// It starts over when the address changes, and ends with the instance, or when
// the task is being stopped.
func (h *handle) publish(initial probe.Verdict) {
	for h.probing.Err() == nil && !h.ended() {
		ctx, address, port := h.endpoint(h.probing)
		h.register(address, port, initial)
		if !h.task.Probe.Enabled {
			h.idle(ctx)
			continue
		}
		prober, ok := h.proberSoon(ctx, address, port)
		if !ok {
			continue
		}
		prober.Run(ctx, initial, probe.Callbacks{OnVerdict: h.onVerdict, OnTransition: h.onTransition, OnIdle: h.renew})
		<-ctx.Done()
		initial = probe.Verdict{} // what was known is of another address
	}
}

// register publishes the endpoint, unless it is published already.
func (h *handle) register(address string, port int, verdict probe.Verdict) {
	if here := (provider.Endpoint{Host: address, Port: port}); here != h.registered {
		h.registered = here
	} else {
		return
	}
	if !h.task.Service.Enabled {
		return
	}
	if !h.task.Probe.Enabled {
		verdict = notProbed
	}
	entry := h.entry(address, port)
	// Under the lock, and it returns at once: a stop or an end that comes now
	// deregisters after it, never before.
	h.mu.Lock()
	var err error
	if !h.stopping && h.result == nil {
		err = h.registrar.Register(entry, verdict)
	}
	h.mu.Unlock()
	if err != nil {
		h.logger.Error("not registered in Consul", "instance", entry.Name, "error", err)
		h.events.emit(h.cfg, "Not registered in Consul: "+oneLine(err))
	}
}

// entry is the endpoint as it stands in Consul.
func (h *handle) entry(address string, port int) registry.Endpoint {
	return registry.Endpoint{
		Name:       h.ref().Name,
		Service:    h.task.Service.Name,
		Address:    address,
		Port:       port,
		Tags:       h.task.Service.Tags,
		Provider:   h.place.name,
		Zone:       h.ref().Zone,
		Namespace:  h.labels.Namespace,
		Job:        h.labels.Job,
		Group:      h.labels.Group,
		Alloc:      h.labels.Alloc,
		Task:       h.labels.Task,
		MaxLeases:  h.task.MaxLeases,
		Auth:       h.task.Auth.Name,
		Attributes: h.task.Attributes,
		TTL:        3 * h.task.Probe.Interval,
	}
}

// proberSoon makes the prober of the endpoint, when need be after the
// credentials file was mended; ok is false when ctx ended before.
func (h *handle) proberSoon(ctx context.Context, address string, port int) (made prober, ok bool) {
	for told := false; ; told = true {
		made, err := h.proberAt(address, port)
		if err == nil {
			return made, true
		}
		if !told {
			h.logger.Error("no probe of the proxy yet, trying on", "instance", h.ref().Name, "error", err)
		}
		if wait(ctx, h.timing.renew); ctx.Err() != nil {
			return nil, false
		}
	}
}

// proberAt makes the prober of the endpoint, with the credentials of now.
func (h *handle) proberAt(address string, port int) (prober, error) {
	auth, err := h.credentials.lookup(h.task.Auth)
	if err != nil {
		return nil, err
	}
	config := probe.Config{
		URLs:      h.task.Probe.URLs,
		Interval:  h.task.Probe.Interval,
		Timeout:   h.task.Probe.Timeout,
		Successes: h.task.Probe.Successes,
		Failures:  h.task.Probe.Failures,
		CAFile:    h.task.Probe.CAFile,
		ExitIPURL: h.task.Probe.ExitIPURL,
	}
	made, err := h.newProber(config, probe.Proxy{
		Host: address, Port: port, Username: auth.Username, Password: auth.Password,
	})
	if err != nil {
		return nil, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.prober = made
	return made, nil
}

// onVerdict hears of each probe.
func (h *handle) onVerdict(verdict probe.Verdict) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.verdict = verdict
}

func (h *handle) onTransition(transition probe.Transition) {
	verdict := transition.Verdict
	h.registrar.Update(h.ref().Name, verdict)
	switch transition.Change {
	case probe.ToCritical:
		h.logger.Warn("proxy fails its probe", "instance", h.ref().Name, "verdict", verdict.Message)
		h.events.emit(h.cfg, "Proxy fails its probe: "+verdict.Message)
	case probe.ToPassing:
		h.logger.Info("proxy passes its probe", "instance", h.ref().Name, "latency", verdict.Latency)
	}
}

// awaitAddress waits for the address of an instance that is starting.
func (h *handle) awaitAddress(ctx context.Context) error {
	for {
		instance, changed := h.snapshot()
		if instance.State == provider.Running && instance.Address != "" {
			return nil
		}
		select {
		case <-changed:
		case <-h.done:
			return h.endedEarly()
		case <-ctx.Done():
			return fmt.Errorf("the instance is %s and has no address yet", instance.State)
		}
	}
}

// awaitProbe waits for the first probe that passes.
func (h *handle) awaitProbe(ctx context.Context, said *progress) (probe.Verdict, error) {
	if !h.task.Probe.Enabled {
		return notProbed, nil
	}
	var last probe.Verdict
	onVerdict := func(verdict probe.Verdict) {
		last = verdict
		h.onVerdict(verdict)
		h.renew()
		if !verdict.OK {
			said.report("Waiting for the proxy to pass its probe: " + verdict.Message)
		}
	}
	for {
		here, address, port := h.endpoint(ctx)
		prober, err := h.proberAt(address, port)
		if err != nil {
			return last, err
		}
		verdict, err := prober.Await(here, onVerdict)
		switch {
		case err == nil:
			return verdict, nil
		case h.ended():
			return last, h.endedEarly()
		case ctx.Err() != nil:
			return last, notPassed(ctx, last)
		case here.Err() == nil:
			return last, err
		}
		// The address changed: once more from the start.
	}
}

func notPassed(ctx context.Context, last probe.Verdict) error {
	if !last.Known() {
		return context.Cause(ctx)
	}
	return fmt.Errorf("the proxy does not pass its probe: %s", last.Message)
}

// endedEarly is the error of a start whose instance has ended.
func (h *handle) endedEarly() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	how := fmt.Sprintf("exit code %d", h.result.ExitCode)
	if h.result.Signal != 0 {
		how = fmt.Sprintf("signal %d", h.result.Signal)
	}
	if h.result.Err != nil {
		how += ": " + h.result.Err.Error()
	}
	return provider.Transientf("the proxy ended while it was starting, with %s", how)
}

// probeOnce probes now, for `nomad alloc exec … probe` and script checks.
func (h *handle) probeOnce(ctx context.Context) (probe.Verdict, error) {
	if !h.task.Probe.Enabled {
		return notProbed, nil
	}
	h.mu.Lock()
	current, address, port := h.prober, h.instance.Address, h.port()
	h.mu.Unlock()
	if current == nil {
		var err error
		if current, err = h.proberAt(address, port); err != nil {
			return probe.Verdict{}, err
		}
	}
	verdict := current.Once(ctx)
	if ctx.Err() != nil {
		return verdict, context.Cause(ctx) // it says nothing about the proxy
	}
	return verdict, nil
}
