package kvm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/digitalocean/go-libvirt"

	"github.com/egress-proxies/egress/provider"
	"github.com/egress-proxies/egress/provider/kvm/dial"
	"github.com/egress-proxies/egress/provider/kvm/domain"
	"github.com/egress-proxies/egress/provider/kvm/virt"
)

// named is a spec with a name and labels.
func named(t *testing.T, task string) provider.Spec {
	t.Helper()
	s := spec(t)
	s.Name = provider.Name("contract", "a1b2c3d4", task)
	s.Labels = provider.Labels{Cluster: "contract", Alloc: "a1b2c3d4", Task: task, CreatedAt: time.Unix(1700000000, 0).UTC()}
	return s
}

func create(t *testing.T, p *Provider, s provider.Spec) provider.Instance {
	t.Helper()
	i, err := p.Create(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	return i
}

func TestBadOptions(t *testing.T) {
	host := func(more ...any) map[string]any {
		h := map[string]any{"address": "unix:///run/libvirt/libvirt-sock"}
		for i := 0; i < len(more); i += 2 {
			h[more[i].(string)] = more[i+1]
		}
		return map[string]any{"host": map[string]any{"a": h}}
	}
	ssh := func(more ...any) map[string]any {
		return host(append([]any{"address", "ssh://u@h", "key_file", "/k", "known_hosts_file", "/n"}, more...)...)
	}
	with := func(m map[string]any, key string, value any) map[string]any {
		m[key] = value
		return m
	}
	for _, test := range []struct {
		options map[string]any
		want    string
	}{
		{map[string]any{}, "no host"},
		{map[string]any{"hosts": 1}, `unknown key "hosts"`},
		{host("adress", "x"), "adress"},
		{host("address", ""), `key "address" is missing`},
		{host("address", "tcp://h"), "want unix:///path or ssh://user@host:22"},
		{host("address", "unix://run/x"), "three slashes"},
		{host("address", "ssh://h", "key_file", "/k", "known_hosts_file", "/n"), "no user"},
		{host("address", "ssh://u:p@h", "key_file", "/k", "known_hosts_file", "/n"), "want no password"},
		{host("address", "ssh://u@h"), `key "key_file" is missing`},
		{ssh("known_hosts_file", "", "insecure_host_key", false), `key "known_hosts_file" is missing`},
		{ssh("insecure_host_key", true), "want one of them"},
		{ssh("key_file", "relative"), "want an absolute path"},
		{host("key_file", "/k"), "no meaning for a local socket"},
		{host("virt_type", "xen"), `virt_type "xen": want one of auto, kvm, qemu`},
		{host("virt_type", "qemu", "cpu_mode", "host-passthrough"), "needs KVM"},
		{host("network", "bridge:"), "name of a bridge"},
		// A slash would make an instance unaddressable (case 40).
		{map[string]any{"host": map[string]any{"a/b": map[string]any{"address": "unix:///s"}}}, `host name "a/b"`},
		{with(host(), "image", map[string]any{"x/y": map[string]any{"url": "/i"}}), `image name "x/y"`},
		{with(host(), "image", map[string]any{"x": map[string]any{"url": "ftp://h/i"}}), `image "x"`},
		{with(host(), "default_image", "none"), `default_image "none"`},
		{with(host(), "default_machine_type", "none"), `default_machine_type "none"`},
		{with(host(), "machine_type", map[string]any{"s": map[string]any{"cores": 0, "memory_mib": 256}}), "cores 0"},
		{with(host(), "vendor_data_file", "rel"), "vendor_data_file"},
		{map[string]any{"host": map[string]any{
			"a": map[string]any{"address": "unix:///s"}, "b": map[string]any{"address": "unix:///s"},
		}}, "would count twice"},
	} {
		_, err := parse(test.options)
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%v: %v, want an error with %q", test.options, err, test.want)
		}
	}
}

func TestBadSpecs(t *testing.T) {
	p := newWorld(t, "a").provider(t, "contract")
	for want, change := range map[string]func(*provider.Spec){
		"command":             func(s *provider.Spec) { s.Command = "x" },
		"bind":                func(s *provider.Spec) { s.Bind = "10.0.0.1" },
		`machine_type "huge"`: func(s *provider.Spec) { s.MachineType = "huge" },
		`image "none"`:        func(s *provider.Spec) { s.Image = "none" },
		`zone "typo"`:         func(s *provider.Spec) { s.Zone = "typo" },
		"at least 64":         func(s *provider.Spec) { s.MachineType, s.Resources.MemoryMiB = "", 8 },
	} {
		s := spec(t)
		change(&s)
		if err := p.Validate(s); provider.Classify(err) != provider.ErrPermanent || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want ErrPermanent with %q", err, want)
		}
	}
}

// Case 42.
func TestAHostThatIsNotConfigured(t *testing.T) {
	p := newWorld(t, "a").provider(t, "contract")
	ref := provider.Ref{Name: named(t, "x").Name, Zone: "removed"}
	if err := p.Delete(t.Context(), ref); err != nil {
		t.Errorf("delete on a removed host: %v, want it finished", err)
	}
	if _, err := p.Get(t.Context(), ref); errors.Is(err, provider.ErrNotFound) || !strings.Contains(err.Error(), "want one of a") {
		t.Errorf("get on a host that is not there: %v, want an error that isn't ErrNotFound", err)
	}
}

func TestAHostThatCantBeAskedIsNotAMissingMachine(t *testing.T) {
	w := newWorld(t, "a", "b")
	p := w.provider(t, "contract")
	w.hosts["b"].fail["LookupDomain"] = provider.Transientf("down")
	if _, err := p.Get(t.Context(), provider.Ref{Name: named(t, "x").Name}); err == nil || errors.Is(err, provider.ErrNotFound) {
		t.Errorf("get while one host is down: %v, want its error", err)
	}
	w.hosts["b"].fail["ListDomains"] = provider.Transientf("down")
	if _, err := p.List(t.Context()); err == nil {
		t.Error("list while one host is down: want an error")
	}
}

func TestADomainOfSomebodyElseIsLeftAlone(t *testing.T) {
	w := newWorld(t, "a")
	p, s := w.provider(t, "contract"), named(t, "x")
	if _, err := w.hosts["a"].DefineDomain(t.Context(), "<domain><name>"+s.Name+"</name></domain>"); err != nil {
		t.Fatal(err)
	}
	if err := p.Delete(t.Context(), provider.Ref{Name: s.Name}); provider.Classify(err) != provider.ErrPermanent {
		t.Errorf("delete of a domain that isn't ours: %v, want ErrPermanent", err)
	}
	if w.hosts["a"].count(t, s.Name) != 1 {
		t.Error("a domain that isn't ours was removed")
	}
}

func TestPlacement(t *testing.T) {
	for name, test := range map[string]struct {
		set  func(a, b *fake)
		want string
	}{
		"most memory":    {func(a, b *fake) { b.memory.Available = 12 << 30 }, "b"},
		"most disk":      {func(a, b *fake) { a.pool.Available = 1 << 30 }, "b"},
		"no room":        {func(a, b *fake) { a.memory.Available = 1 << 20 }, "b"},
		"unreachable":    {func(a, b *fake) { a.fail["Pool"] = provider.Transientf("down") }, "b"},
		"inactive pool":  {func(a, b *fake) { a.pool.Active = false }, "b"},
		"quota at start": {func(a, b *fake) { a.fail["StartDomain"] = provider.Quotaf("cannot allocate memory") }, "b"},
		"equal":          {func(a, b *fake) {}, "a"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, "a", "b")
			p, s := w.provider(t, "contract"), named(t, "x")
			test.set(w.hosts["a"], w.hosts["b"])
			if i := create(t, p, s); i.Zone != test.want {
				t.Errorf("placed on %s, want %s", i.Zone, test.want)
			}
			if n := w.hosts["a"].count(t, s.Name) + w.hosts["b"].count(t, s.Name); n != 4 {
				t.Errorf("%d pieces on both hosts, want the 4 of one machine", n)
			}
		})
	}
}

func TestFewestOfOursBreaksATie(t *testing.T) {
	w := newWorld(t, "a", "b")
	p := w.provider(t, "contract")
	var zones []string
	for i := range 4 {
		zones = append(zones, create(t, p, named(t, fmt.Sprint("t", i))).Zone)
	}
	if !slices.Equal(zones, []string{"a", "b", "a", "b"}) {
		t.Errorf("placed on %v, want them in turn", zones)
	}
}

// The tasks of one job start at once, before libvirt can count any of them.
func TestMachinesPlacedAtOnceAreSpread(t *testing.T) {
	w := newWorld(t, "a", "b")
	p := w.provider(t, "contract")
	var first []string
	var leave []func()
	for i := range 4 {
		plan, err := p.plan(named(t, fmt.Sprint("t", i)))
		if err != nil {
			t.Fatal(err)
		}
		hosts, done, err := p.place(t.Context(), plan)
		if err != nil {
			t.Fatal(err)
		}
		first, leave = append(first, hosts[0].name), append(leave, done)
	}
	if !slices.Equal(first, []string{"a", "b", "a", "b"}) {
		t.Errorf("placed on %v, want them in turn", first)
	}
	for _, done := range leave {
		done()
	}
	if p.hosts[0].arriving != 0 || p.hosts[1].arriving != 0 {
		t.Error("machines that have left are counted for ever")
	}
}

func TestNoRoomAnywhereTellsTheNumbers(t *testing.T) {
	w := newWorld(t, "a", "b")
	for _, h := range w.hosts {
		h.memory.Available = 100 << 20
	}
	_, err := w.provider(t, "contract").Create(t.Context(), named(t, "x"))
	if provider.Classify(err) != provider.ErrQuotaExceeded || !strings.Contains(err.Error(), "100 of 16384 MiB of memory") || !strings.Contains(err.Error(), "256 MiB") {
		t.Errorf("%v, want ErrQuotaExceeded with what is there and what is needed", err)
	}
}

// The host of an attempt that was cut off is asked, even when it is the one
// that can't be: the machine may run there.
func TestAnInterruptedAttemptIsLookedForOnItsHost(t *testing.T) {
	w := newWorld(t, "a", "b")
	s := named(t, "x")
	first := create(t, w.provider(t, "contract"), s)
	restarted := w.provider(t, "contract")
	w.hosts[first.Zone].fail["LookupDomain"] = provider.Transientf("down")
	if _, err := restarted.Create(t.Context(), s); provider.Classify(err) != provider.ErrTransient {
		t.Errorf("create while the first attempt's host is down: %v, want ErrTransient", err)
	}
	again := create(t, restarted, s)
	if again.ID != first.ID {
		t.Errorf("adopted %s, want %s", again.ID, first.ID)
	}
}

// Case 36: whatever an earlier attempt uploaded is not used.
func TestTheSeedIsAlwaysRebuilt(t *testing.T) {
	w := newWorld(t, "a")
	p, s := w.provider(t, "contract"), named(t, "x")
	host, volume := w.hosts["a"], domain.VolumeName("contract", s.Name, domain.Seed)
	host.volumes[volume] = &fakeVolume{content: []byte("cut off")}
	create(t, p, s)
	seed := host.volumes[volume].content
	if len(seed) < 32<<10 || !strings.Contains(string(seed), "#cloud-config") {
		t.Errorf("the seed has %d bytes and not the user-data", len(seed))
	}
	if !strings.Contains(host.domains[s.Name].xml, `file="/pool/`+volume) {
		t.Error("the machine does not name the seed by its path")
	}
}

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

func TestListCostsCallsInProportionToOurs(t *testing.T) {
	w := newWorld(t, "a")
	p, host := w.provider(t, "contract"), w.hosts["a"]
	for i := range 900 {
		if _, err := host.DefineDomain(t.Context(), fmt.Sprintf("<domain><name>other-%d</name></domain>", i)); err != nil {
			t.Fatal(err)
		}
	}
	const ours = 10
	for i := range ours {
		create(t, p, named(t, fmt.Sprint("t", i)))
	}
	host.mu.Lock()
	clear(host.calls)
	host.mu.Unlock()
	all, err := p.List(t.Context())
	if err != nil || len(all) != ours {
		t.Fatalf("listed %d, %v, want %d", len(all), err, ours)
	}
	n := 0
	for _, count := range host.calls {
		n += count
	}
	if n > 2+2*ours {
		t.Errorf("%d calls to list %d of ours among 900 others, want at most %d: %v", n, ours, 2+2*ours, host.calls)
	}
}

func TestCheckReasons(t *testing.T) {
	for want, set := range map[provider.Reason]func(*fake){
		provider.Reachable:    func(f *fake) {},
		provider.LibvirtError: func(f *fake) { f.fail["Versions"] = answer(provider.ErrTransient, libvirt.ErrInternalError, "odd") },
		provider.Unreachable: func(f *fake) {
			f.fail["Versions"] = &dial.Error{Reason: provider.Unreachable, Err: provider.Transientf("no route")}
		},
		provider.SSHMaterialUnavailable: func(f *fake) {
			f.fail["Versions"] = &dial.Error{Reason: provider.SSHMaterialUnavailable, Err: provider.Transientf("key_file")}
		},
		provider.Forbidden: func(f *fake) {
			f.fail["Pool"] = answer(provider.ErrPermanent, libvirt.ErrOperationDenied, "operation virStoragePoolRefresh forbidden for read only access")
		},
		provider.PoolNotFound:              func(f *fake) { f.fail["Pool"] = answer(provider.ErrPermanent, libvirt.ErrNoStoragePool, "no pool") },
		provider.PoolNotActive:             func(f *fake) { f.pool.Active = false },
		provider.PoolNearlyFull:            func(f *fake) { f.pool.Available = 10 << 20 },
		provider.NetworkNotFound:           func(f *fake) { f.network = false },
		provider.FirmwareMissing:           func(f *fake) { f.able.UEFI = false },
		provider.VirtualizationUnavailable: func(f *fake) { f.able.Types = nil },
	} {
		w := newWorld(t, "a")
		p := w.provider(t, "contract")
		// An image that boots with UEFI, which is the default.
		set(w.hosts["a"])
		if want == provider.FirmwareMissing {
			entry := p.settings.Images["test"]
			entry.Firmware = ""
			p.settings.Images["test"] = entry
		}
		verdicts := p.Check(t.Context())
		if len(verdicts) != 1 || verdicts[0].Reason != want || verdicts[0].Ready != (want == provider.Reachable) || verdicts[0].Message == "" {
			t.Errorf("verdicts %+v, want %s", verdicts, want)
		}
	}
}
