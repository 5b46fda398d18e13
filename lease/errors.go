package lease

import (
	"errors"
	"fmt"
	"time"
)

// The errors of this package. Each wraps or is exactly one of them; lease/http
// maps each to one status.
var (
	// ErrInvalid: the request can't be understood; it will never work.
	ErrInvalid = errors.New("invalid request")
	// ErrNoCapacity: proxies match, and none can take the lease now.
	ErrNoCapacity = errors.New("no proxy free")
	// ErrNoMatch: the pool has no proxy that matches the selector.
	ErrNoMatch = errors.New("no proxy matches")
	// ErrUnknownLease: there is no lease of this id, or no memory of it.
	ErrUnknownLease = errors.New("unknown lease")
	// ErrUnknownProxy: the pool has no proxy of this id.
	ErrUnknownProxy = errors.New("unknown proxy")
	// ErrEnded: the lease has ended and can't be renewed or reported on.
	ErrEnded = errors.New("lease has ended")
	// ErrSessionEnded: a hard session lost its proxy; the next acquire with
	// its name starts a new one.
	ErrSessionEnded = errors.New("session has ended")
	// ErrKeyReused: the idempotency key belongs to a different request.
	ErrKeyReused = errors.New("idempotency key was used for another request")
	// ErrQueueFull: too many acquires wait already.
	ErrQueueFull = errors.New("too many acquires are waiting")
	// ErrNotReady: the pool is unknown, since Consul has not answered yet.
	ErrNotReady = errors.New("the pool is not known yet")
	// ErrNoLeader: this process may not decide and knows no one who may.
	ErrNoLeader = errors.New("no leader")
	// ErrUncertain: storing the decision broke; it may or may not have been
	// made. Repeating the request with the same idempotency key is safe.
	ErrUncertain = errors.New("the outcome is unknown")
)

// FieldError is an ErrInvalid about one field of a request.
type FieldError struct {
	// Field is the name of the field in the API.
	Field string
	// Value is what was given.
	Value string
	// Pos is the byte in Value where it goes wrong, from 0; -1 for no place.
	Pos int
	// Want says what is expected.
	Want string
}

// Error names the field, the value, the place and what is expected.
func (e *FieldError) Error() string {
	if e.Pos >= 0 {
		return fmt.Sprintf("%s %q: at character %d: %s", e.Field, e.Value, e.Pos+1, e.Want)
	}
	return fmt.Sprintf("%s %q: %s", e.Field, e.Value, e.Want)
}

// Is makes it an ErrInvalid.
func (e *FieldError) Is(target error) bool { return target == ErrInvalid }

// Counts is the arithmetic of a refusal. Matching is the sum of the others.
type Counts struct {
	// Matching proxies are chosen by the selector.
	Matching int
	// Unhealthy ones have a check that does not pass.
	Unhealthy int
	// NoCredentials ones need credentials that the service does not know.
	NoCredentials int
	// Draining ones are being taken out of service.
	Draining int
	// Frozen ones get no new leases.
	Frozen int
	// Cooling ones were reported as failed.
	Cooling int
	// Blocked ones were reported as blocked by the target.
	Blocked int
	// AtCapacity ones carry all the leases that they may.
	AtCapacity int
	// ExitFull ones share an exit address that carries all the leases it may.
	ExitFull int
	// Free ones could be leased; fewer than were asked for.
	Free int
}

// Refusal is an ErrNoCapacity or an ErrNoMatch with its reasons.
type Refusal struct {
	// Counts says why each matching proxy was not given.
	Counts Counts
	// RetryAfter is when the next lease or cooldown ends, at least a second.
	RetryAfter time.Duration
	// Session is set when only the proxy of this session would do.
	Session string
}

// Error is the arithmetic in words.
func (r *Refusal) Error() string {
	c := r.Counts
	if c.Matching == 0 {
		return "no proxy matches the selector"
	}
	whose := ""
	if r.Session != "" {
		whose = fmt.Sprintf(" for session %q", r.Session)
	}
	return fmt.Sprintf("no proxy free%s: %d match, of which %d at capacity, %d that share a full exit address, %d cooling, %d blocked by the target, %d frozen, %d draining, %d unhealthy, %d without credentials, %d free",
		whose, c.Matching, c.AtCapacity, c.ExitFull, c.Cooling, c.Blocked, c.Frozen, c.Draining, c.Unhealthy, c.NoCredentials, c.Free)
}

// Is makes it an ErrNoMatch when nothing matches, else an ErrNoCapacity.
func (r *Refusal) Is(target error) bool {
	if r.Counts.Matching == 0 {
		return target == ErrNoMatch
	}
	return target == ErrNoCapacity
}

// EndedError is an ErrEnded, or an ErrSessionEnded, with its reason.
type EndedError struct {
	// ID is the lease, or the session.
	ID string
	// Reason says why it ended.
	Reason EndReason
	// OfSession is true when ID is a session.
	OfSession bool
}

// Error names what ended and why.
func (e *EndedError) Error() string {
	if e.OfSession {
		return fmt.Sprintf("session %q has ended: %s", e.ID, e.Reason)
	}
	return fmt.Sprintf("lease %q has ended: %s", e.ID, e.Reason)
}

// Is makes it an ErrEnded or an ErrSessionEnded.
func (e *EndedError) Is(target error) bool {
	if e.OfSession {
		return target == ErrSessionEnded
	}
	return target == ErrEnded
}
