package driver

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/hashicorp/nomad/plugins/drivers/testutils"

	"github.com/egress-proxies/egress/driver/probe"
	"github.com/egress-proxies/egress/provider/fake"
)

func TestExecProbe(t *testing.T) {
	h := newHarness(t)
	cfg := h.task("1", nil)
	h.start(cfg)
	result, err := h.ExecTask(cfg.ID, []string{"probe"}, time.Minute)
	if err != nil || result.ExitResult.ExitCode != 0 || !strings.Contains(string(result.Stdout), "proxy works (1ms), exit address 198.51.100.7") {
		t.Errorf("a proxy that works: %+v %q, %v", result.ExitResult, result.Stdout, err)
	}
	h.parts.probe.say(refuses(probe.StageAuth, "the proxy answered 407"))
	result, err = h.ExecTask(cfg.ID, []string{"probe"}, time.Minute)
	if err != nil || result.ExitResult.ExitCode != 2 || !strings.Contains(string(result.Stdout), "auth: the proxy answered 407") {
		t.Errorf("a proxy that refuses: %+v %q, %v", result.ExitResult, result.Stdout, err)
	}
}

func TestExecRunsInTheInstance(t *testing.T) {
	h := newHarness(t)
	cfg := h.task("1", nil)
	h.start(cfg)
	result, err := h.ExecTask(cfg.ID, []string{"uname", "-a"}, time.Minute)
	if err != nil || string(result.Stdout) != "[uname -a]\n" {
		t.Errorf("%q, %v", result.Stdout, err)
	}
	if result, err := h.ExecTask(cfg.ID, []string{"exit", "7"}, time.Minute); err != nil || result.ExitResult.ExitCode != 7 {
		t.Errorf("%+v, %v, want exit code 7", result, err)
	}
	if _, err := h.ExecTask(cfg.ID, nil, time.Minute); err == nil {
		t.Error("no command was run without an error")
	}
	if _, err := h.ExecTask("alloc/never/seen", []string{"probe"}, time.Minute); !errors.Is(err, drivers.ErrTaskNotFound) {
		t.Errorf("unknown task: %v", err)
	}
}

func TestExecIsBounded(t *testing.T) {
	h := newHarness(t)
	cfg := h.task("1", nil)
	h.start(cfg)
	_, release := h.parts.provider.Hold(fake.StepExec)
	defer release()
	if _, err := h.ExecTask(cfg.ID, []string{"sleep"}, 10*time.Millisecond); err == nil {
		t.Error("no error although the command hangs")
	}
}

// The stream's real other end: what an agent does for `nomad alloc exec`.
func TestExecStreaming(t *testing.T) {
	h := newHarness(t)
	nomad := testutils.NewDriverHarness(t, h.Driver)
	cfg := h.task("1", nil)
	allocDir(t, nomad, cfg, false)
	h.start(cfg)
	raw, ok := nomad.DriverPlugin.(drivers.ExecTaskStreamingRawDriver)
	if !ok {
		t.Fatal("the client can't stream")
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	stream := &execStream{ctx: ctx, input: []byte("input that the command never reads")}
	if err := raw.ExecTaskStreamingRaw(ctx, cfg.ID, []string{"exit", "3"}, true, stream); err != nil {
		t.Fatalf("exec: %v", err)
	}
	if stream.exit == nil || stream.exit.ExitCode != 3 {
		t.Errorf("exit %v, want code 3", stream.exit)
	}
	stream = &execStream{ctx: ctx}
	if err := raw.ExecTaskStreamingRaw(ctx, cfg.ID, []string{"probe"}, false, stream); err != nil {
		t.Fatalf("probe: %v", err)
	}
	if !strings.Contains(stream.stdout.String(), "proxy works") {
		t.Errorf("stdout %q", stream.stdout.String())
	}
}

// What a streaming exec returns as an error, the CLI shows as "unexpected EOF".
func TestExecStreamingTellsWhyNothingRan(t *testing.T) {
	parts := newParts(t)
	parts.bare = true
	h := startHarness(t, parts, testConfig)
	cfg := h.task("1", nil)
	h.start(cfg)
	stream := &execStream{ctx: t.Context()}
	if err := h.ExecTaskStreamingRaw(t.Context(), cfg.ID, []string{"sh"}, false, stream); err != nil {
		t.Fatal(err)
	}
	if stream.exit == nil || stream.exit.ExitCode != 126 {
		t.Errorf("exit %v, want code 126", stream.exit)
	}
	if got := stream.stderr.String(); !strings.Contains(got, `command "sh": provider`) || !strings.Contains(got, `want "probe"`) {
		t.Errorf("stderr %q", got)
	}
}
