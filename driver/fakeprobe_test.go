package driver

import (
	"context"
	"net/netip"
	"sync"
	"time"

	"github.com/egress-proxies/egress/driver/probe"
)

// fakeProbe says what it was told of every proxy.
type fakeProbe struct {
	mu      sync.Mutex // guards what follows
	says    probe.Verdict
	changed chan struct{}
	probed  []probe.Proxy
	used    [][2]string // credentials that were set
}

var works = probe.Verdict{OK: true, Message: probe.Works, ExitIP: netip.MustParseAddr("198.51.100.7"), Latency: time.Millisecond}

func refuses(stage probe.Stage, message string) probe.Verdict {
	return probe.Verdict{Stage: stage, Message: string(stage) + ": " + message}
}

func newFakeProbe() *fakeProbe { return &fakeProbe{says: works, changed: make(chan struct{})} }

// say changes what every probe finds from now on.
func (f *fakeProbe) say(verdict probe.Verdict) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.says = verdict
	close(f.changed)
	f.changed = make(chan struct{})
}

func (f *fakeProbe) look() (probe.Verdict, <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.says, f.changed
}

// asked is true once a proxy was to be probed.
func (f *fakeProbe) asked() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.probed) > 0
}

// first is the proxy that was probed first.
func (f *fakeProbe) first() probe.Proxy {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.probed[0]
}

func (f *fakeProbe) prober(_ probe.Config, proxy probe.Proxy) (prober, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.probed = append(f.probed, proxy)
	return f, nil
}

func (f *fakeProbe) Once(context.Context) probe.Verdict {
	verdict, _ := f.look()
	return verdict
}

func (f *fakeProbe) Await(ctx context.Context, onVerdict func(probe.Verdict)) (probe.Verdict, error) {
	for {
		verdict, changed := f.look()
		onVerdict(verdict)
		if verdict.OK {
			return verdict, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return verdict, context.Cause(ctx)
		}
	}
}

func (f *fakeProbe) Run(ctx context.Context, initial probe.Verdict, callbacks probe.Callbacks) {
	published := initial
	idle := time.NewTicker(time.Millisecond)
	defer idle.Stop()
	for {
		verdict, changed := f.look()
		callbacks.OnVerdict(verdict)
		if verdict.OK != published.OK || !published.Known() {
			change := probe.ToPassing
			if !verdict.OK {
				change = probe.ToCritical
			}
			callbacks.OnTransition(probe.Transition{Change: change, Verdict: verdict})
			published = verdict
		}
		for said := false; !said; {
			callbacks.OnIdle()
			select {
			case <-changed:
				said = true
			case <-idle.C:
			case <-ctx.Done():
				return
			}
		}
	}
}

func (f *fakeProbe) SetCredentials(username, password string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.used = append(f.used, [2]string{username, password})
	return nil
}
