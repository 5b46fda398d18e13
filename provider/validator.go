package provider

// Validator is an optional interface: what can be said about a Spec without
// asking the place. The driver calls it before Create, so that a mistake in a
// task is told at once and never retried.
type Validator interface {
	// Validate gives an error of class ErrPermanent that names the key of the
	// task config, its value and what is expected.
	Validate(spec Spec) error
}
