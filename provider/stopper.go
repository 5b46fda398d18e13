package provider

import "context"

// Stopper is an optional interface: an orderly shutdown.
type Stopper interface {
	// Stop asks the instance to end (ACPI power button, SIGTERM) and returns
	// without waiting for it. signal is the task's kill_signal, or empty for
	// the provider's own choice. Gone and already stopped are success. The
	// caller watches Get and calls Delete in the end.
	Stop(ctx context.Context, ref Ref, signal string) error
}

// Signaler is an optional interface: any signal for a running instance.
type Signaler interface {
	// Signal sends the signal ("SIGHUP") to the proxy. A name that is not a
	// signal is ErrPermanent.
	Signal(ctx context.Context, ref Ref, signal string) error
}
