package driver

import (
	"context"
	"io"
	"sync"

	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/hashicorp/nomad/plugins/drivers/proto"

	"github.com/egress-proxies/egress/provider"
)

// cannotExec is the exit code of a command that could not be run, as a shell
// has it.
const cannotExec = 126

var _ drivers.ExecTaskStreamingRawDriver = (*Driver)(nil)

// ExecTaskStreamingRaw runs a command in the instance with its streams at a
// person's terminal: `nomad alloc exec`. It speaks the stream's own protocol,
// because Nomad's simpler interface has no way to give up input that the command
// never reads.
func (d *Driver) ExecTaskStreamingRaw(ctx context.Context, id string, command []string, tty bool,
	stream drivers.ExecTaskStream,
) error {
	h := d.store.task(id)
	if h == nil {
		return drivers.ErrTaskNotFound
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(h.ctx, cancel)()
	terminal := newTerminal(stream)
	// receive ends when the RPC does, which is when this method has returned: it
	// can't be waited for here.
	go terminal.receive(ctx)
	exit, err := h.exec(ctx, provider.ExecRequest{
		Command: command, TTY: tty, Resize: terminal.resize,
		Stdin: terminal.stdin,
		Stdout: terminal.output(func(io *proto.ExecTaskStreamingIOOperation) *drivers.ExecTaskStreamingResponseMsg {
			return &drivers.ExecTaskStreamingResponseMsg{Stdout: io}
		}),
		Stderr: terminal.output(func(io *proto.ExecTaskStreamingIOOperation) *drivers.ExecTaskStreamingResponseMsg {
			return &drivers.ExecTaskStreamingResponseMsg{Stderr: io}
		}),
	})
	_ = terminal.stdin.Close() // lets receive go on
	if err != nil {
		return terminal.refused(err)
	}
	return terminal.exited(exit)
}

// terminal is the far end of an exec.
type terminal struct {
	stream drivers.ExecTaskStream
	stdin  *io.PipeReader
	input  *io.PipeWriter
	resize chan provider.TerminalSize

	mu sync.Mutex // guards sending, which is not safe for concurrent use
}

func newTerminal(stream drivers.ExecTaskStream) *terminal {
	t := &terminal{stream: stream, resize: make(chan provider.TerminalSize, 1)}
	t.stdin, t.input = io.Pipe()
	return t
}

// receive hands on what comes from the person until the stream ends.
func (t *terminal) receive(ctx context.Context) {
	defer t.input.Close()
	for {
		message, err := t.stream.Recv()
		if err != nil {
			return
		}
		switch {
		case message.Stdin != nil && message.Stdin.Close:
			_ = t.input.Close()
		case message.Stdin != nil:
			// Input that nobody reads any more is dropped.
			_, _ = t.input.Write(message.Stdin.Data)
		case message.TtySize != nil:
			t.sized(ctx, provider.TerminalSize{Width: int(message.TtySize.Width), Height: int(message.TtySize.Height)})
		}
	}
}

// sized keeps the latest size for whoever asks.
func (t *terminal) sized(ctx context.Context, size provider.TerminalSize) {
	select {
	case <-t.resize:
	default:
	}
	select {
	case t.resize <- size:
	case <-ctx.Done():
	}
}

// output is a writer that sends.
func (t *terminal) output(wrap func(*proto.ExecTaskStreamingIOOperation) *drivers.ExecTaskStreamingResponseMsg) io.Writer {
	return writerFunc(func(data []byte) (int, error) {
		err := t.send(wrap(&proto.ExecTaskStreamingIOOperation{Data: data}))
		if err != nil {
			return 0, err
		}
		return len(data), nil
	})
}

// refused tells the person why nothing ran. Of an error that this method returned
// `nomad alloc exec` would show "unexpected EOF" only; the reason would be in the
// agent's log.
func (t *terminal) refused(reason error) error {
	text := []byte(oneLine(reason) + "\n")
	if err := t.send(&drivers.ExecTaskStreamingResponseMsg{Stderr: &proto.ExecTaskStreamingIOOperation{Data: text}}); err != nil {
		return err
	}
	return t.exited(provider.Exit{Code: cannotExec})
}

func (t *terminal) exited(exit provider.Exit) error {
	return t.send(&drivers.ExecTaskStreamingResponseMsg{
		Exited: true,
		Result: &proto.ExitResult{ExitCode: int32(exit.Code), Signal: int32(exit.Signal)},
	})
}

func (t *terminal) send(message *drivers.ExecTaskStreamingResponseMsg) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.stream.Send(message)
}

type writerFunc func(data []byte) (int, error)

func (f writerFunc) Write(data []byte) (int, error) { return f(data) }
