package provider

import "context"

// Watcher is an optional interface: push instead of poll.
type Watcher interface {
	// Watch sends the instance's state now and then at every change until ctx
	// ends or the instance is gone; the last value of an instance that is gone
	// has State Stopped. The channel is closed after the last value. A watch
	// that breaks sends State Unknown and closes; the caller then polls Get and
	// watches again.
	Watch(ctx context.Context, ref Ref) (<-chan Instance, error)
}
