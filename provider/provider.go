// Package provider is the contract between the driver and the places where an
// egress proxy can run: hypervisors, clouds, clusters and the node itself.
//
// The contract in prose, with a table of each error class and what the driver
// does about it, is docs/provider-contract.md. Every adapter passes the suite
// in provider/providertest.
package provider

import (
	"context"
	"time"
)

// Provider launches and removes instances. An instance is one proxy: a VM, a
// pod or a process. All methods are safe for concurrent use, return promptly
// when ctx ends, and give errors of one of the classes in errors.go.
type Provider interface {
	// Create makes the instance spec.Name exist and start. It is idempotent:
	// whatever an earlier, interrupted attempt left behind is adopted or made
	// again, and a stopped or crashed leftover of the name is deleted first. It
	// returns when the start was accepted, which may be before the instance has
	// an address. On error it removes what it made, as far as it can; what it
	// can't is found by List. Long steps are told through Report.
	Create(ctx context.Context, spec Spec) (Instance, error)

	// Get reports the state and the addresses of one instance. ErrNotFound is a
	// normal answer and means that nothing of that name exists in the place
	// that ref names, or in any place when ref.Zone is empty; a place that
	// can't be asked is an error of another class, never ErrNotFound.
	Get(ctx context.Context, ref Ref) (Instance, error)

	// Delete removes everything that belongs to the instance, also when only a
	// part of it exists, at once and by force. Gone is success. An orderly
	// shutdown is Stopper's business.
	Delete(ctx context.Context, ref Ref) error

	// List reports every instance and every leftover piece (a volume without a
	// domain counts) that carries the labels of this provider's cluster. A
	// place that can't be listed fails the list.
	List(ctx context.Context) ([]Instance, error)
}

// Ref addresses one instance.
type Ref struct {
	// Name is the deterministic name of the instance; see Name.
	Name string `json:"name"`
	// Zone is the place within the provider: a hypervisor, a cloud zone.
	// Empty means every place that the provider knows.
	Zone string `json:"zone,omitempty"`
}

// String is "zone/name", or the name alone when no zone is known.
func (r Ref) String() string {
	if r.Zone == "" {
		return r.Name
	}
	return r.Zone + "/" + r.Name
}

// Instance is what a provider knows of one instance, or of a leftover piece.
type Instance struct {
	Ref
	// ID is the provider's own id (a domain UUID, a self link, a pid); for
	// people and for messages only.
	ID string
	// State is the state now.
	State State
	// Reason explains State to a person: "killed by signal 9", "preempted". It
	// may be empty for Provisioning and Running.
	Reason string
	// Exit is set when State is Stopped and the provider knows how it ended.
	Exit *Exit
	// Address is the address that clients use: IPv4 when there is one. Empty
	// while State is Provisioning.
	Address string
	// Addresses are all usable addresses; never link-local, and never loopback
	// unless the instance runs on the node itself.
	Addresses []string
	// Port is where the proxy listens; 0 means the port of the Spec.
	Port int
	// Labels are what was attached at Create.
	Labels Labels
	// CreatedAt is when it was made; zero when unknown.
	CreatedAt time.Time
	// Pieces names what exists of a Leftover: "volume default/x.qcow2".
	Pieces []string
}

// Exit is how an instance ended.
type Exit struct {
	// Code is the exit code; 0 with no signal is a clean end.
	Code int
	// Signal is the number of the signal that ended it; 0 is none.
	Signal int
	// OOMKilled is true when memory ran out.
	OOMKilled bool
}

// State of an instance.
type State int

// The states. Unknown is the zero value: it means "could not be determined" and
// is never read as stopped.
const (
	Unknown State = iota
	// Provisioning exists and is on its way, or runs without an address yet.
	Provisioning
	// Running has an address.
	Running
	// Stopping is on its way down.
	Stopping
	// Stopped has ended and will not come back by itself.
	Stopped
	// Leftover is not an instance but pieces of one; only List reports it.
	Leftover
)

// String is the lower-case name of the state.
func (s State) String() string {
	switch s {
	case Provisioning:
		return "provisioning"
	case Running:
		return "running"
	case Stopping:
		return "stopping"
	case Stopped:
		return "stopped"
	case Leftover:
		return "leftover"
	default:
		return "unknown"
	}
}
