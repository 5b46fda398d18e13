package command_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/egress-proxies/egress/fingerprint"
	"github.com/egress-proxies/egress/fingerprint/command"
	"github.com/egress-proxies/egress/provider"
	"github.com/egress-proxies/egress/provider/fake"
)

// check runs `egress check` over a fake with two zones.
func check(ctx context.Context, f *fake.Provider, args ...string) (output string, code int, err error) {
	c := command.Command(func([]string, hclog.Logger) ([]fingerprint.Source, func() error, error) {
		return []fingerprint.Source{{Name: "hv", Type: "fake", Provider: f}}, nil, nil
	})
	var out bytes.Buffer
	c.SetOut(&out)
	c.SetErr(&out)
	c.SetArgs(args)
	err = c.ExecuteContext(ctx)
	var coded interface{ ExitCode() int }
	switch {
	case errors.As(err, &coded):
		code = coded.ExitCode()
	case err != nil:
		code = -1
	}
	return out.String(), code, err
}

func twoZones() *fake.Provider { return fake.New(fake.Options{Zones: []string{"a", "b"}}) }

func TestATargetThatIsNotReadyIsShownWithWhatToDo(t *testing.T) {
	f := twoZones()
	f.SetFacts("a", map[string]string{"pool_available_bytes": "469762048000", "libvirt_version": "9.0.0"})
	f.Fail("check/b", -1, fake.Because(provider.PoolNotActive, "pool \"x\" is inactive: virsh pool-start x"))
	out, code, err := check(t.Context(), f)
	if code != 1 || err == nil || err.Error() != "1 of 2 targets not ready" {
		t.Errorf("code %d, %v, want 1", code, err)
	}
	for _, want := range []string{
		"hv        a       fake  yes    Reachable      <1ms     libvirt_version=9.0.0 pool_available_gib=437\n",
		"hv        b       fake  no     PoolNotActive  <1ms     -\n",
		"What to do:\n  hv/b: PoolNotActive: pool \"x\" is inactive: virsh pool-start x\n",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
}

func TestAReasonWithoutAMessageHasAdvice(t *testing.T) {
	f := twoZones()
	f.Fail("check/b", -1, fake.Because(provider.FirmwareMissing, ""))
	out, _, _ := check(t.Context(), f)
	if !strings.Contains(out, "hv/b: FirmwareMissing: install the UEFI firmware") {
		t.Errorf("no advice in\n%s", out)
	}
}

func TestAllReady(t *testing.T) {
	out, code, err := check(t.Context(), twoZones())
	if code != 0 || err != nil || strings.Contains(out, "What to do") {
		t.Errorf("code %d, %v:\n%s", code, err, out)
	}
}

func TestJSON(t *testing.T) {
	f := twoZones()
	f.Fail("check/b", -1, fake.Because(provider.Forbidden, "no right"))
	out, code, _ := check(t.Context(), f, "--json")
	var got struct {
		Ready, Total int
		Targets      []struct {
			Provider, Type, Target, Reason, Message string
			Ready                                   bool
		}
	}
	// Cobra prints the error after it, as main does on standard error.
	if err := json.NewDecoder(strings.NewReader(out)).Decode(&got); err != nil {
		t.Fatalf("%v in\n%s", err, out)
	}
	if code != 1 || got.Ready != 1 || got.Total != 2 || len(got.Targets) != 2 ||
		got.Targets[1].Reason != "Forbidden" || got.Targets[1].Message != "no right" || got.Targets[0].Ready != true {
		t.Errorf("code %d, %+v", code, got)
	}
}

func TestWhatCanNotBeCheckedHasItsOwnExitCode(t *testing.T) {
	for name, args := range map[string][]string{
		"unknown provider": {"--provider", "hw"},
		"no time":          {"--timeout", "0s"},
	} {
		if _, code, err := check(t.Context(), twoZones(), args...); code != 2 {
			t.Errorf("%s: code %d, %v, want 2", name, code, err)
		}
	}
	c := command.Command(func([]string, hclog.Logger) ([]fingerprint.Source, func() error, error) {
		return nil, nil, errors.New(`no plugin "egress" block`)
	})
	c.SetArgs(nil)
	c.SetErr(new(bytes.Buffer))
	var coded interface{ ExitCode() int }
	if err := c.ExecuteContext(t.Context()); !errors.As(err, &coded) || coded.ExitCode() != 2 {
		t.Errorf("config that can't be read: %v, want exit code 2", err)
	}
}

func TestWatchShowsEachRoundUntilItIsStopped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := twoZones()
		f.Fail("check/b", 1, fake.Because(provider.Unreachable, "refused"))
		ctx, cancel := context.WithTimeout(t.Context(), 12*time.Second)
		defer cancel()
		out, code, err := check(ctx, f, "--watch", "--json")
		if code != 0 || err != nil {
			t.Errorf("stopped: code %d, %v", code, err)
		}
		lines := strings.Split(strings.TrimSpace(out), "\n")
		if len(lines) != 3 || !strings.Contains(lines[0], `"ready":1`) || !strings.Contains(lines[1], `"ready":2`) {
			t.Errorf("want a line per round, the first with a fault:\n%s", out)
		}
	})
}
