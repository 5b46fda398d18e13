package driver

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/hashicorp/nomad/nomad/structs"

	"github.com/egress-proxies/egress/provider"
)

// The causes with which the driver itself ends what it is doing.
var (
	// errClosing: the plugin ends; tasks live on and are recovered by the next.
	errClosing = errors.New("the plugin is closing")
	// errSuperseded: Nomad starts the same task under a new id, so that it knows
	// nothing of this one (the agent was killed).
	errSuperseded = errors.New("the task was started again under another id")
	// errDestroyed: DestroyTask was called.
	errDestroyed = errors.New("the task was destroyed")
	// errStopped: StopTask was called, and there is no orderly way to stop.
	errStopped = errors.New("the task was stopped")
	// errStartTimeout: start_timeout is over.
	errStartTimeout = errors.New("start_timeout is over")
)

// startError is what StartTask returns: a RecoverableError, bare and outermost
// since the plugin's RPC layer looks at nothing below it, when another try may
// work, and a plain error when a person must change something first. Nomad's
// restart policy decides about the tries.
func startError(err error) error {
	message := oneLine(err)
	if provider.Retryable(err) || errors.Is(err, provider.ErrNotFound) {
		return structs.NewRecoverableError(errors.New(message), true)
	}
	return errors.New(message)
}

// interruptedStart explains the error of a start whose time is over, or that was
// given up, by what it was doing. Any other error is left as it is.
func interruptedStart(ctx context.Context, limit time.Duration, doing string, err error) error {
	cause := context.Cause(ctx)
	switch {
	case cause == nil:
		return err
	case errors.Is(cause, errStartTimeout):
		return provider.Transientf("start_timeout %v is over while %s: %s", limit, doing, err)
	default:
		return provider.Transientf("gave up while %s: %w", doing, cause)
	}
}

// oneLine is the text of err for an event, which has one line.
func oneLine(err error) string {
	return strings.Join(strings.FieldsFunc(err.Error(), func(r rune) bool { return r == '\n' || r == '\r' }), "; ")
}

// unknownProvider says that a task's provider is not configured any more.
func unknownProvider(name string, known string) error {
	return fmt.Errorf("provider %q isn't in the plugin's config any more: want one of %s; put it back to let its tasks"+
		" be stopped and deleted", name, known)
}
