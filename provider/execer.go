package provider

import (
	"context"
	"io"
)

// Execer is an optional interface: a command inside the instance.
type Execer interface {
	// Exec runs the command to its end and reports how it ended. An error means
	// that the command could not be run or followed, not that it failed.
	Exec(ctx context.Context, ref Ref, req ExecRequest) (Exit, error)
}

// ExecRequest is one command.
type ExecRequest struct {
	// Command is the program and its arguments.
	Command []string
	// TTY asks for a terminal where the provider has one.
	TTY bool
	// Stdin may be nil.
	Stdin io.Reader
	// Stdout receives the output; with TTY, both streams.
	Stdout io.Writer
	// Stderr receives the errors.
	Stderr io.Writer
	// Resize carries terminal sizes; it may be nil.
	Resize <-chan TerminalSize
}

// TerminalSize is in characters.
type TerminalSize struct {
	// Width is the number of columns.
	Width int
	// Height is the number of rows.
	Height int
}
