package kube

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/egress-proxies/egress/provider"
)

func mustConsole(t *testing.T, p *Provider, ref provider.Ref, offset int64) io.ReadCloser {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	log, err := p.Console(ctx, ref, offset)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cancel()
		_ = log.Close()
	})
	return log
}

func mustRead(t *testing.T, log io.Reader, want string) {
	t.Helper()
	got := make([]byte, len(want))
	if _, err := io.ReadFull(log, got); err != nil || string(got) != want {
		t.Fatalf("read %q, %v, want %q", got, err, want)
	}
}

func TestConsoleFollowsFromAnOffset(t *testing.T) {
	a := newAPIServer(t)
	p := a.provider(t, nil, quick)
	ref := mustCreate(t, p).Ref
	a.write("one\ntwo\n", false)
	all, rest, end := mustConsole(t, p, ref, 0), mustConsole(t, p, ref, 4), mustConsole(t, p, ref, -1)
	rotated := mustConsole(t, p, ref, 1000)
	mustRead(t, all, "one\ntwo\n")
	mustRead(t, rest, "two\n")
	mustRead(t, rotated, "one\ntwo\n")
	a.write("three\n", false)
	for _, log := range []io.Reader{all, rest, end, rotated} {
		mustRead(t, log, "three\n")
	}
	a.change(ref.Name, func(pod *corev1.Pod) { pod.Status = terminated(0, "Completed") })
	a.write("four\n", true)
	for _, log := range []io.Reader{all, rest, end, rotated} {
		if text, err := io.ReadAll(log); err != nil || string(text) != "four\n" {
			t.Errorf("the end is %q, %v, want the last line and io.EOF", text, err)
		}
	}
}

func TestConsoleThatBreaksOffIsNoEnd(t *testing.T) {
	a := newAPIServer(t)
	p := a.provider(t, nil, quick)
	ref := mustCreate(t, p).Ref
	log := mustConsole(t, p, ref, 0)
	a.write("one\n", true) // the connection ends, the pod runs on
	if text, err := io.ReadAll(log); provider.Classify(err) != provider.ErrTransient || string(text) != "one\n" {
		t.Errorf("%q, %v, want ErrTransient", text, err)
	}
}

func TestConsoleBeforeTheContainerIsTransient(t *testing.T) {
	a := newAPIServer(t)
	a.hold = true
	p := a.provider(t, map[string]any{"pending_timeout": "1s"}, quick)
	ref := mustCreate(t, p).Ref
	a.spoil(fault{call: "get pods/log", status: 400, message: "container is waiting to start"})
	if _, err := p.Console(t.Context(), ref, 0); provider.Classify(err) != provider.ErrTransient || !strings.Contains(err.Error(), "doesn't run yet") {
		t.Errorf("%v, want ErrTransient that says so", err)
	}
	if _, err := p.Console(t.Context(), provider.Ref{Name: "eg-none"}, 0); err == nil {
		t.Error("the log of a pod that isn't there: want an error")
	}
}

// The driver asks again a second after a failure; a role without pods/log must
// not cost a call a second and task.
func TestRefusedConsoleIsAskedSeldom(t *testing.T) {
	a := newAPIServer(t)
	timing := quick
	timing.longest = time.Second
	p := a.provider(t, nil, timing)
	ref := mustCreate(t, p).Ref
	a.spoil(fault{call: "get pods/log", status: 403})
	began := time.Now()
	_, err := p.Console(t.Context(), ref, 0)
	if provider.Classify(err) != provider.ErrPermanent || time.Since(began) < time.Second {
		t.Errorf("%v after %s, want ErrPermanent after the pause", err, time.Since(began))
	}
}

func TestExec(t *testing.T) {
	a := newAPIServer(t)
	p := a.provider(t, nil, quick)
	ref := mustCreate(t, p).Ref
	var stdout, stderr bytes.Buffer
	exit, err := p.Exec(t.Context(), ref, provider.ExecRequest{
		Command: []string{"cat"}, Stdin: strings.NewReader("hello"), Stdout: &stdout, Stderr: &stderr,
	})
	if err != nil || exit.Code != 0 || stdout.String() != "hello" || stderr.String() != "done" {
		t.Errorf("%v, %v, stdout %q, stderr %q, want the input back and %q", exit, err, &stdout, &stderr, "done")
	}
	exit, err = p.Exec(t.Context(), ref, provider.ExecRequest{Command: []string{"exit", "3"}, Stdout: &stdout, Stderr: &stderr})
	if err != nil || exit.Code != 3 {
		t.Errorf("%v, %v, want the code 3: a command that fails is no error", exit, err)
	}
	resize := make(chan provider.TerminalSize, 1)
	resize <- provider.TerminalSize{Width: 120, Height: 40}
	stdout.Reset()
	exit, err = p.Exec(t.Context(), ref, provider.ExecRequest{
		Command: []string{"size"}, TTY: true, Resize: resize, Stdin: strings.NewReader(""), Stdout: &stdout, Stderr: &stderr,
	})
	if err != nil || stdout.String() != "120x40 tty=true" {
		t.Errorf("%v, %v, %q, want a terminal of 120x40", exit, err, &stdout)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := p.Exec(ctx, ref, provider.ExecRequest{Command: []string{"hang"}, Stdout: &stdout}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v, want the end of the context", err)
	}
}
