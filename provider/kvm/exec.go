package kvm

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"time"

	"github.com/egress-proxies/egress/provider"
	"github.com/egress-proxies/egress/provider/kvm/virt"
)

const (
	// agentTimeout bounds one command of the agent, which answers at once.
	agentTimeout = 10 * time.Second
	// execPollMin and execPollMax are how often a command in the guest is asked
	// whether it has ended: the agent does not tell.
	execPollMin = 50 * time.Millisecond
	execPollMax = time.Second
	// stdinMax is how much input is passed on; the agent takes it in one JSON
	// message, of which libvirt carries 4 MiB.
	stdinMax = 1 << 20
	// stdinWait is how long input may take to begin. Nomad keeps the input of
	// an exec open, and the agent wants all of it before it starts.
	stdinWait = 300 * time.Millisecond
)

type agentRequest struct {
	Execute   string `json:"execute"`
	Arguments any    `json:"arguments"`
}

type execArguments struct {
	Path          string   `json:"path"`
	Arg           []string `json:"arg,omitempty"`
	Input         []byte   `json:"input-data,omitempty"`
	CaptureOutput bool     `json:"capture-output"`
}

type execStatus struct {
	Exited       bool   `json:"exited"`
	ExitCode     int    `json:"exitcode"`
	Signal       int    `json:"signal"`
	Out          []byte `json:"out-data"`
	Err          []byte `json:"err-data"`
	OutTruncated bool   `json:"out-truncated"`
	ErrTruncated bool   `json:"err-truncated"`
}

// Exec runs a command through the guest agent. The agent has no terminal and
// gives the output at the end, so TTY and Resize change nothing.
func (p *Provider) Exec(ctx context.Context, ref provider.Ref, req provider.ExecRequest) (provider.Exit, error) {
	if len(req.Command) == 0 {
		return provider.Exit{}, provider.Permanentf("exec: no command given")
	}
	h, d, err := p.find(ctx, ref)
	if err != nil {
		return provider.Exit{}, err
	}
	if _, err := p.owned(ctx, h, d); err != nil {
		return provider.Exit{}, err
	}
	var input []byte
	if req.Stdin != nil && !req.TTY {
		if input, err = readInput(ctx, req.Stdin); err != nil {
			return provider.Exit{}, err
		}
	}
	var started struct {
		PID int `json:"pid"`
	}
	arguments := execArguments{Path: req.Command[0], Arg: req.Command[1:], Input: input, CaptureOutput: true}
	if err := h.ask(ctx, d, "guest-exec", arguments, &started); err != nil {
		return provider.Exit{}, err
	}
	status, err := h.follow(ctx, d, started.PID)
	if err != nil {
		return provider.Exit{}, err
	}
	return provider.Exit{Code: status.ExitCode, Signal: status.Signal}, status.write(req)
}

func (s execStatus) write(req provider.ExecRequest) error {
	out, errs := req.Stdout, req.Stderr
	if out == nil {
		out = io.Discard
	}
	if errs == nil || req.TTY {
		errs = out
	}
	_, first := out.Write(s.Out)
	_, second := errs.Write(s.Err)
	var third error
	if s.OutTruncated || s.ErrTruncated {
		_, third = io.WriteString(errs, "\n[the guest agent cut the output off]\n")
	}
	return errors.Join(first, second, third)
}

// follow waits for the command's end, and ends it when ctx does.
func (h *host) follow(ctx context.Context, d virt.Domain, pid int) (execStatus, error) {
	for pause := execPollMin; ; pause = min(2*pause, execPollMax) {
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			h.terminate(ctx, d, pid)
			return execStatus{}, provider.Transientf("exec: %w", context.Cause(ctx))
		}
		var status execStatus
		if err := h.ask(ctx, d, "guest-exec-status", map[string]int{"pid": pid}, &status); err != nil {
			if ctx.Err() != nil {
				h.terminate(ctx, d, pid)
			}
			return execStatus{}, err
		}
		if status.Exited {
			return status, nil
		}
	}
}

// terminate sends SIGTERM through a second command, as the agent has no way to
// signal the first. It is best effort: nobody waits for the answer any more.
func (h *host) terminate(ctx context.Context, d virt.Domain, pid int) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), agentTimeout)
	defer cancel()
	arguments := execArguments{Path: "kill", Arg: []string{"-TERM", itoa(pid)}}
	_ = h.ask(ctx, d, "guest-exec", arguments, nil) // said above
}

// ask sends a command to the agent and reads what it returns.
func (h *host) ask(ctx context.Context, d virt.Domain, command string, arguments, result any) error {
	request, err := json.Marshal(agentRequest{Execute: command, Arguments: arguments})
	if err != nil {
		return provider.Permanentf("exec: %w", err)
	}
	answer, err := h.Agent(ctx, d, string(request), agentTimeout)
	if err != nil || result == nil {
		return err
	}
	var envelope struct {
		Return json.RawMessage `json:"return"`
	}
	if err := json.Unmarshal([]byte(answer), &envelope); err == nil {
		err = json.Unmarshal(envelope.Return, result)
		if err == nil {
			return nil
		}
	}
	return provider.Transientf("the guest agent's answer to %s is not understood", command)
}

// readInput takes the input to its end, once some of it came.
func readInput(ctx context.Context, r io.Reader) ([]byte, error) {
	type piece struct {
		content []byte
		err     error
	}
	pieces := make(chan piece)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() { // ends with the input, which the caller closes
		for {
			b := make([]byte, 32<<10)
			n, err := r.Read(b)
			select {
			case pieces <- piece{b[:n], err}:
			case <-ctx.Done():
				return
			}
			if err != nil {
				return
			}
		}
	}()
	var input []byte
	begin := time.After(stdinWait)
	for {
		select {
		case p := <-pieces:
			begin = nil
			input = append(input, p.content...)
			if len(input) > stdinMax {
				return nil, provider.Permanentf("exec: the input is longer than %d bytes: put it into a file in the guest", stdinMax)
			}
			if errors.Is(p.err, io.EOF) {
				return input, nil
			}
			if p.err != nil {
				return nil, provider.Transientf("exec: input: %w", p.err)
			}
		case <-begin:
			return nil, nil
		case <-ctx.Done():
			return nil, provider.Transientf("exec: %w", context.Cause(ctx))
		}
	}
}
