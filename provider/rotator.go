package provider

import "context"

// Rotator is an optional interface: new credentials for an instance that runs.
type Rotator interface {
	// Rotate makes the instance ask its clients for auth and for nothing else
	// from its return on; what goes through the proxy already goes on. It may be
	// repeated. ErrNotFound says that no such instance runs, ErrPermanent that
	// this one takes other credentials only by a new start, and why.
	Rotate(ctx context.Context, ref Ref, auth Credentials) error
}
