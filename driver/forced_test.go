package driver

import (
	"errors"
	"testing"

	"github.com/egress-proxies/egress/provider"
)

// The provider sees our own delete as a kill by somebody: the reason is ours all
// the same. How an instance ended by itself at the last moment counts.
func TestWhyAnInstanceWasForced(t *testing.T) {
	timeout := errors.New("did not end within kill_timeout 1s")
	for _, test := range []struct {
		name   string
		forced error
		exit   *provider.Exit
		code   int
		err    error
	}{
		{"ignored the request, end unknown", timeout, nil, 137, timeout},
		{"ignored the request, seen as killed", timeout, &provider.Exit{Signal: 9}, 137, timeout},
		{"has no orderly stop, seen as killed", errStopped, &provider.Exit{Signal: 9}, 0, nil},
		{"ended in time", timeout, &provider.Exit{}, 0, nil},
	} {
		h := &handle{stopping: true, forced: test.forced}
		got := h.exitResult(provider.Instance{State: provider.Stopped, Exit: test.exit, Reason: "the domain was destroyed on its host"})
		if got.ExitCode != test.code || !errors.Is(got.Err, test.err) {
			t.Errorf("%s: %+v, want code %d and %v", test.name, got, test.code, test.err)
		}
	}
}
