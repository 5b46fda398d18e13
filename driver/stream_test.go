package driver

import (
	"bytes"
	"context"
	"io"
	"sync/atomic"

	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/hashicorp/nomad/plugins/drivers/proto"
)

// execStream is a person at a terminal.
type execStream struct {
	ctx    context.Context
	input  []byte
	stdout bytes.Buffer
	stderr bytes.Buffer
	exit   *proto.ExitResult
	sent   atomic.Bool
}

func (s *execStream) Send(message *drivers.ExecTaskStreamingResponseMsg) error {
	if message.Stdout != nil {
		s.stdout.Write(message.Stdout.Data)
	}
	if message.Stderr != nil {
		s.stderr.Write(message.Stderr.Data)
	}
	if message.Exited {
		s.exit = message.Result
	}
	return nil
}

func (s *execStream) Recv() (*drivers.ExecTaskStreamingRequestMsg, error) {
	if len(s.input) > 0 && !s.sent.Swap(true) {
		return &drivers.ExecTaskStreamingRequestMsg{Stdin: &proto.ExecTaskStreamingIOOperation{Data: s.input}}, nil
	}
	<-s.ctx.Done()
	return nil, io.EOF
}
