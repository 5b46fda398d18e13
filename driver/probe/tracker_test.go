package probe

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

var (
	ok   = Verdict{OK: true, Message: Works}
	tcp  = Verdict{Stage: StageTCP, Message: "tcp: x"}
	auth = Verdict{Stage: StageAuth, Message: "auth: x"}
)

func exits(address string) Verdict {
	verdict := ok
	verdict.ExitIP = netip.MustParseAddr(address)
	return verdict
}

// Case 19 is the first one.
func TestTrackerPublishesOnlyTransitions(t *testing.T) {
	for name, test := range map[string]struct {
		successes, failures int
		initial             Verdict
		seen                []Verdict
		want                string
	}{
		"flapping":                     {2, 3, ok, []Verdict{ok, tcp, ok, tcp, tcp, ok, auth, tcp}, "- - - - - - - -"},
		"fails for good":               {1, 3, ok, []Verdict{tcp, auth, tcp, tcp, tcp}, "- - critical - -"},
		"recovers":                     {2, 3, tcp, []Verdict{ok, tcp, ok, ok, ok}, "- - - passing -"},
		"unknown and works":            {1, 3, Verdict{}, []Verdict{ok, ok}, "passing -"},
		"unknown and fails":            {1, 3, Verdict{}, []Verdict{tcp, tcp, tcp}, "- - critical"},
		"another reason, for good":     {1, 2, tcp, []Verdict{auth, tcp, auth, auth, auth}, "- - - reason -"},
		"another exit address":         {1, 3, exits("192.0.2.1"), []Verdict{exits("192.0.2.1"), ok, exits("192.0.2.2"), ok}, "- - exit_ip -"},
		"the exit address gets known":  {1, 3, ok, []Verdict{ok, exits("192.0.2.2")}, "- exit_ip"},
		"exit address while it failed": {1, 1, exits("192.0.2.1"), []Verdict{tcp, exits("192.0.2.2"), ok}, "critical passing -"},
	} {
		tracker := NewTracker(test.successes, test.failures, test.initial)
		var got []string
		for _, verdict := range test.seen {
			change := "-"
			if transition, ok := tracker.Observe(verdict); ok {
				change = string(transition.Change)
				if tracker.Current() != transition.Verdict {
					t.Errorf("%s: published %+v, current %+v", name, transition.Verdict, tracker.Current())
				}
			}
			got = append(got, change)
		}
		if strings.Join(got, " ") != test.want {
			t.Errorf("%s: %v, want %s", name, got, test.want)
		}
	}
}

func TestTrackerKeepsTheLastKnownExitAddress(t *testing.T) {
	tracker := NewTracker(1, 1, exits("192.0.2.1"))
	transition, _ := tracker.Observe(tcp)
	if transition.Change != ToCritical || transition.Verdict.ExitIP.String() != "192.0.2.1" {
		t.Errorf("%+v", transition)
	}
}

func TestRunKeepsThePaceAndEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 1000*time.Second)
		defer cancel()
		probes, changes := 0, []Change{}
		once := func(context.Context) Verdict {
			probes++
			if probes > 50 {
				return tcp
			}
			return ok
		}
		run(ctx, once, 10*time.Second, NewTracker(1, 3, ok), Callbacks{OnTransition: func(transition Transition) {
			changes = append(changes, transition.Change)
		}})
		if probes < 95 || probes > 105 {
			t.Errorf("%d probes in 100 intervals", probes)
		}
		if len(changes) != 1 || changes[0] != ToCritical {
			t.Errorf("transitions %v", changes)
		}
	})
}

func TestRunsThatStartTogetherSpread(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		started, first := time.Now(), make(chan time.Duration, 100)
		for range 100 {
			go func() {
				ctx, cancel := context.WithCancel(t.Context())
				run(ctx, func(context.Context) Verdict {
					first <- time.Since(started)
					cancel()
					return ok
				}, 10*time.Second, NewTracker(1, 1, ok), Callbacks{})
			}()
		}
		var early int
		for range 100 {
			if <-first < 5*time.Second {
				early++
			}
		}
		if early < 20 || early > 80 {
			t.Errorf("%d of 100 in the first half of the interval", early)
		}
	})
}

func TestIdleIsAboutEverySecondAndNeverDuringAProbe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Second)
		defer cancel()
		probing, idles := false, 0
		once := func(context.Context) Verdict {
			if idles == 0 {
				t.Error("a probe before the first idle moment")
			}
			probing = true
			time.Sleep(3 * time.Second)
			probing = false
			return ok
		}
		run(ctx, once, 10*time.Second, NewTracker(1, 3, ok), Callbacks{OnIdle: func() {
			if probing {
				t.Error("idle during a probe")
			}
			idles++
		}})
		if idles < 60 || idles > 100 {
			t.Errorf("%d idle moments in the 70 idle seconds", idles)
		}
	})
}

func TestRunDropsAVerdictThatWasCutShort(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	once := func(context.Context) Verdict {
		cancel()
		return tcp
	}
	run(ctx, once, time.Millisecond, NewTracker(1, 1, ok), Callbacks{
		OnTransition: func(transition Transition) { t.Errorf("published %+v", transition) },
		OnVerdict:    func(verdict Verdict) { t.Errorf("heard of %+v", verdict) },
	})
}

func TestAwaitIsQuickAtFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var heard int
		started := time.Now()
		once := func(context.Context) Verdict {
			if time.Since(started) < 2*time.Second {
				return tcp
			}
			return ok
		}
		verdict, err := await(t.Context(), once, 5*time.Second, func(Verdict) { heard++ })
		if err != nil || !verdict.OK || time.Since(started) > 3*time.Second || heard < 3 {
			t.Errorf("%+v, %v after %v and %d probes", verdict, err, time.Since(started), heard)
		}
	})
}

func TestAwaitSaysWhatItLastSaw(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		late := errors.New("start_timeout")
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Minute, late)
		defer cancel()
		verdict, err := await(ctx, func(context.Context) Verdict { return auth }, 5*time.Second, nil)
		if verdict != auth || !errors.Is(err, late) {
			t.Errorf("%+v, %v", verdict, err)
		}
	})
}
