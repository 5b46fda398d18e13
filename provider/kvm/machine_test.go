package kvm

import (
	"context"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/digitalocean/go-libvirt"

	"github.com/egress-proxies/egress/provider"
	"github.com/egress-proxies/egress/provider/kvm/domain"
	"github.com/egress-proxies/egress/provider/kvm/virt"
)

func TestAddresses(t *testing.T) {
	mac := domain.MAC(named(t, "x").Name)
	ip := netip.MustParseAddr
	later := time.Unix(2000000000, 0)
	card := func(mac string, addresses ...netip.Addr) []virt.Card {
		return []virt.Card{{MAC: mac, Addresses: addresses}}
	}
	for name, test := range map[string]struct {
		agent, arp []virt.Card
		before     []virt.Lease // when the machine was made
		leases     []virt.Lease
		fail       []string
		want       []string
	}{
		"none":      {want: []string{}},
		"agent":     {agent: card(mac, ip("fe80::2"), ip("127.0.0.1"), ip("2001:db8::1"), ip("10.0.0.2")), want: []string{"10.0.0.2", "2001:db8::1"}},
		"lease":     {leases: []virt.Lease{{MAC: mac, Address: ip("10.0.0.3"), Expires: later}}, want: []string{"10.0.0.3"}},
		"arp":       {arp: card(mac, ip("10.0.0.4")), want: []string{"10.0.0.4"}},
		"same":      {agent: card(mac, ip("10.0.0.4")), arp: card(mac, ip("10.0.0.4")), want: []string{"10.0.0.4"}},
		"link only": {agent: card(mac, ip("fe80::2"), ip("169.254.1.1")), want: []string{}},
		// Case 11: the right one is found by MAC.
		"other guests": {agent: card("52:54:00:00:00:01", ip("10.0.0.9")), arp: card("", ip("10.0.0.8")),
			leases: []virt.Lease{{MAC: "52:54:00:00:00:02", Address: ip("10.0.0.7"), Expires: later}}, want: []string{}},
		"stale lease": {
			before: []virt.Lease{{MAC: mac, Address: ip("10.0.0.5"), Expires: later}},
			leases: []virt.Lease{{MAC: mac, Address: ip("10.0.0.5"), Expires: later}}, arp: card(mac, ip("10.0.0.5")), want: []string{}},
		"stale and new": {
			before: []virt.Lease{{MAC: mac, Address: ip("10.0.0.5"), Expires: later}},
			leases: []virt.Lease{{MAC: mac, Address: ip("10.0.0.5"), Expires: later}, {MAC: mac, Address: ip("10.0.0.6"), Expires: later.Add(1)}},
			want:   []string{"10.0.0.6"}},
		"renewed": {
			before: []virt.Lease{{MAC: mac, Address: ip("10.0.0.5"), Expires: later}},
			leases: []virt.Lease{{MAC: mac, Address: ip("10.0.0.5"), Expires: later.Add(time.Hour)}}, want: []string{"10.0.0.5"}},
		// Case 44: one source fails, the others answer.
		"arp fails":   {agent: card(mac, ip("10.0.0.2")), fail: []string{"DomainAddresses/arp"}, want: []string{"10.0.0.2"}},
		"agent fails": {leases: []virt.Lease{{MAC: mac, Address: ip("10.0.0.3"), Expires: later}}, fail: []string{"DomainAddresses/agent"}, want: []string{"10.0.0.3"}},
		"lease fails": {arp: card(mac, ip("10.0.0.4")), fail: []string{"Leases"}, want: []string{"10.0.0.4"}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, "a")
			p, s, host := w.provider(t, "contract"), named(t, "x"), w.hosts["a"]
			host.leases = test.before
			i := create(t, p, s)
			host.leases = test.leases
			host.cards = map[virt.Source][]virt.Card{virt.SourceAgent: test.agent, virt.SourceARP: test.arp}
			for _, source := range test.fail {
				host.fail[source] = answer(provider.ErrTransient, libvirt.ErrInternalError, "wrong nlmsg len")
			}
			got, err := p.Get(t.Context(), i.Ref)
			if err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(got.Addresses, test.want) {
				t.Errorf("addresses %v, want %v", got.Addresses, test.want)
			}
			if running := got.State == provider.Running; running != (len(test.want) > 0) {
				t.Errorf("state %v with addresses %v", got.State, got.Addresses)
			}
		})
	}
}

func TestEndings(t *testing.T) {
	for name, test := range map[string]struct {
		state virt.State
		want  provider.State
		exit  *provider.Exit
	}{
		"shutdown":  {virt.State{Phase: virt.Off, Ending: virt.EndShutdown, Reason: "r"}, provider.Stopped, &provider.Exit{}},
		"crash":     {virt.State{Phase: virt.Off, Ending: virt.EndCrashed, Reason: "r"}, provider.Stopped, &provider.Exit{Code: 1}},
		"destroyed": {virt.State{Phase: virt.Off, Ending: virt.EndDestroyed, Reason: "r"}, provider.Stopped, &provider.Exit{Signal: 9}},
		"unknown":   {virt.State{Phase: virt.NoState, Reason: "r"}, provider.Unknown, nil},
		"paused":    {virt.State{Phase: virt.Paused, Reason: "r"}, provider.Unknown, nil},
		"going":     {virt.State{Phase: virt.ShuttingDown, Reason: "r"}, provider.Stopping, nil},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, "a")
			p := w.provider(t, "contract")
			i := create(t, p, named(t, "x"))
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			updates, err := p.Watch(ctx, i.Ref)
			if err != nil {
				t.Fatal(err)
			}
			if first := <-updates; first.State != provider.Running {
				t.Errorf("first state %v, want running", first.State)
			}
			w.hosts["a"].set(i.Name, test.state)
			got := <-updates
			if got.State != test.want || got.Reason != "r" {
				t.Errorf("state %v, reason %q, want %v", got.State, got.Reason, test.want)
			}
			if (got.Exit == nil) != (test.exit == nil) || (got.Exit != nil && *got.Exit != *test.exit) {
				t.Errorf("exit %+v, want %+v", got.Exit, test.exit)
			}
			cancel()
			for range updates { // closed once the watch has ended
			}
		})
	}
}

func TestWatchOfARemovedMachineEnds(t *testing.T) {
	w := newWorld(t, "a")
	p := w.provider(t, "contract")
	i := create(t, p, named(t, "x"))
	updates, err := p.Watch(t.Context(), i.Ref)
	if err != nil {
		t.Fatal(err)
	}
	<-updates
	if err := p.Delete(t.Context(), i.Ref); err != nil {
		t.Fatal(err)
	}
	last := provider.Instance{}
	for last = range updates {
	}
	if last.State != provider.Stopped || last.Reason == "" {
		t.Errorf("the last state is %v (%q), want stopped with a reason", last.State, last.Reason)
	}
}

// Case 7: a connection that breaks is not an ended machine.
func TestWatchOverABrokenConnectionSaysUnknown(t *testing.T) {
	w := newWorld(t, "a")
	p := w.provider(t, "contract")
	i := create(t, p, named(t, "x"))
	updates, err := p.Watch(t.Context(), i.Ref)
	if err != nil {
		t.Fatal(err)
	}
	<-updates
	host := w.hosts["a"]
	host.mu.Lock()
	for listener := range host.watchers {
		close(listener)
	}
	host.mu.Unlock()
	last := provider.Instance{}
	for last = range updates {
	}
	if last.State != provider.Unknown {
		t.Errorf("the last state is %v, want unknown", last.State)
	}
}

func TestConsole(t *testing.T) {
	w := newWorld(t, "a")
	p := w.provider(t, "contract")
	i, host := create(t, p, named(t, "x")), w.hosts["a"]
	say := func(text string) {
		host.mu.Lock()
		defer host.mu.Unlock()
		v := host.volumes[domain.VolumeName("contract", i.Name, domain.Console)]
		v.content = append(v.content, text...)
	}
	say("booting\n")
	for offset, want := range map[int64]string{0: "booting\nready\n", 8: "ready\n", 1000: "booting\nready\n"} {
		reader, err := p.Console(t.Context(), i.Ref, offset)
		if err != nil {
			t.Fatal(err)
		}
		defer reader.Close()
		if offset == 0 {
			b := make([]byte, 8)
			if _, err := io.ReadFull(reader, b); err != nil {
				t.Fatal(err)
			}
			say("ready\n")
			host.set(i.Name, virt.State{Phase: virt.Off})
			rest, err := io.ReadAll(reader)
			if got := string(b) + string(rest); got != want || err != nil {
				t.Errorf("read %q, %v, want %q", got, err, want)
			}
		}
	}
	for offset, want := range map[int64]string{8: "ready\n", 1000: "booting\nready\n", -1: ""} {
		reader, err := p.Console(t.Context(), i.Ref, offset)
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(reader)
		if string(got) != want || err != nil {
			t.Errorf("from %d: read %q, %v, want %q", offset, got, err, want)
		}
	}
}

func TestExec(t *testing.T) {
	w := newWorld(t, "a")
	p := w.provider(t, "contract")
	i, host := create(t, p, named(t, "x")), w.hosts["a"]
	asked := 0
	host.agent = func(command string) (string, error) {
		switch {
		case strings.Contains(command, "guest-exec-status"):
			if asked++; asked < 3 {
				return `{"return":{"exited":false}}`, nil
			}
			return `{"return":{"exited":true,"exitcode":3,"out-data":"b3V0","err-data":"ZXJy"}}`, nil
		case !strings.Contains(command, `"path":"sh","arg":["-c","exit 3"],"input-data":"aW4="`):
			return "", fmt.Errorf("unexpected %s", command)
		}
		return `{"return":{"pid":7}}`, nil
	}
	var out, errs strings.Builder
	exit, err := p.Exec(t.Context(), i.Ref, provider.ExecRequest{
		Command: []string{"sh", "-c", "exit 3"}, Stdin: strings.NewReader("in"), Stdout: &out, Stderr: &errs,
	})
	if err != nil || exit.Code != 3 || out.String() != "out" || errs.String() != "err" {
		t.Errorf("exit %+v, %v, out %q, err %q", exit, err, out.String(), errs.String())
	}
}

func TestAnExecThatIsGivenUpIsTerminatedInTheGuest(t *testing.T) {
	w := newWorld(t, "a")
	p := w.provider(t, "contract")
	i, host := create(t, p, named(t, "x")), w.hosts["a"]
	ctx, cancel := context.WithCancel(t.Context())
	killed := false
	host.agent = func(command string) (string, error) {
		switch {
		case strings.Contains(command, `"path":"kill","arg":["-TERM","7"]`):
			killed = true
		case strings.Contains(command, "guest-exec-status"):
			cancel()
			return `{"return":{"exited":false}}`, nil
		}
		return `{"return":{"pid":7}}`, nil
	}
	if _, err := p.Exec(ctx, i.Ref, provider.ExecRequest{Command: []string{"sleep", "1000"}}); err == nil {
		t.Error("an exec that was given up: want an error")
	}
	if !killed {
		t.Error("the command was not terminated in the guest")
	}
}

func TestStopOfWhatIsGoneOrOff(t *testing.T) {
	w := newWorld(t, "a")
	p := w.provider(t, "contract")
	i, host := create(t, p, named(t, "x")), w.hosts["a"]
	host.set(i.Name, virt.State{Phase: virt.Off})
	for _, ref := range []provider.Ref{i.Ref, {Name: named(t, "gone").Name}} {
		if err := p.Stop(t.Context(), ref, ""); err != nil {
			t.Errorf("stop of %s: %v, want success", ref, err)
		}
	}
	if host.calls["ShutdownDomain"] != 0 {
		t.Error("a machine that is off was asked to shut down")
	}
}
