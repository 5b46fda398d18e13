package provider

import (
	"context"
	"errors"
	"fmt"
)

// The error classes. Every error that a Provider returns wraps at most one of
// them; Classify says which. docs/provider-contract.md tables what the driver
// does with each.
var (
	// ErrNotFound: nothing of that name exists. A normal answer of Get.
	ErrNotFound = errors.New("not found")
	// ErrQuotaExceeded: the place has no room: a quota, a full pool or disk, no
	// memory. Another place, or the same one later, may have.
	ErrQuotaExceeded = errors.New("quota exceeded")
	// ErrTransient: the same call may work later.
	ErrTransient = errors.New("transient")
	// ErrPermanent: the same call can't work until a person changes something.
	ErrPermanent = errors.New("permanent")
)

// Error is an error with a class. Its text is the message alone: the class is
// for programs, the message for people.
type Error struct {
	// Class is one of the four sentinels.
	Class error
	// Err is the cause, whose text is the message.
	Err error
}

// Error is the text of the cause.
func (e *Error) Error() string { return e.Err.Error() }

// Unwrap gives the class and the cause, for errors.Is and errors.As.
func (e *Error) Unwrap() []error { return []error{e.Class, e.Err} }

// NotFoundf is an error of class ErrNotFound. %w works as in fmt.Errorf.
func NotFoundf(format string, args ...any) error { return classed(ErrNotFound, format, args) }

// Quotaf is an error of class ErrQuotaExceeded. %w works as in fmt.Errorf.
func Quotaf(format string, args ...any) error { return classed(ErrQuotaExceeded, format, args) }

// Transientf is an error of class ErrTransient. %w works as in fmt.Errorf.
func Transientf(format string, args ...any) error { return classed(ErrTransient, format, args) }

// Permanentf is an error of class ErrPermanent. %w works as in fmt.Errorf.
func Permanentf(format string, args ...any) error { return classed(ErrPermanent, format, args) }

func classed(class error, format string, args []any) error {
	return &Error{Class: class, Err: fmt.Errorf(format, args...)}
}

// Classify returns the class of err, or nil for nil. The outermost class wins,
// so that a caller which knows better can override. An error without a class,
// a deadline and a cancellation are ErrTransient.
func Classify(err error) error {
	if err == nil {
		return nil
	}
	var classified *Error
	if errors.As(err, &classified) {
		return classified.Class
	}
	for _, class := range []error{ErrNotFound, ErrQuotaExceeded, ErrTransient, ErrPermanent} {
		if errors.Is(err, class) {
			return class
		}
	}
	return ErrTransient
}

// Retryable is true when the same start may work later, here or elsewhere.
func Retryable(err error) bool {
	switch Classify(err) {
	case ErrTransient, ErrQuotaExceeded:
		return true
	default:
		return false
	}
}

// IsCanceled is true when err comes from a context that ended.
func IsCanceled(err error) bool {
	return errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}
