package process

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/egress-proxies/egress/provider"
)

func TestValidate(t *testing.T) {
	limited := map[string]any{
		"allow_clients": []string{"10.0.0.0/8"}, "allow_targets": []string{"172.16.0.0/12"},
		"idle_timeout": "1m", "max_duration": "1h", "command": false,
	}
	args := func(list ...string) func(*provider.Spec) { return func(s *provider.Spec) { s.Args = list } }
	for _, test := range []struct {
		name    string
		options map[string]any
		change  func(*provider.Spec)
		want    string // in the error; empty is success
	}{
		{"port 0", nil, func(s *provider.Spec) { s.Port = 0 }, "port: 0: want 1 to 65535"},
		{"zone", nil, func(s *provider.Spec) { s.Zone = "hv1" }, `zone: "hv1"`},
		{"image", nil, func(s *provider.Spec) { s.Image = "debian-12" }, "image:"},
		{"endpoint", nil, func(s *provider.Spec) { s.Endpoint.Host = "x" }, "endpoint:"},
		{"listen by name", nil, func(s *provider.Spec) { s.Listen = "localhost" }, `listen: "localhost": want an IP`},
		{"bind by interface", nil, func(s *provider.Spec) { s.Bind = "eth1" }, `bind: "eth1": want an IP`},
		{"colon in the user", nil, func(s *provider.Spec) { s.Auth.Username = "a:b" }, "colon"},
		{"password alone", nil, func(s *provider.Spec) { s.Auth.Password = "p" }, "username is empty"},
		{"unknown arg", nil, args("--lsten=x"), "unknown flag: --lsten: want flags of the built-in proxy: --access-log"},
		{"arg that isn't a flag", nil, args("serve"), `"serve": want flags`},
		{"arg of the wrong type", nil, args("--idle-timeout=soon"), "--idle-timeout"},
		{"arg with a bad network", nil, args("--allow-client=10.0.0.0/33"), `--allow-client: "10.0.0.0/33"`},
		{"listen as an arg", nil, args("--listen=:1"), "unknown flag: --listen"},
		{"wider clients", limited, args("--allow-client=0.0.0.0/0"), "--allow-client 0.0.0.0/0: the provider's allow_clients has only 10.0.0.0/8"},
		{"wider than the default", nil, args("--allow-client=0.0.0.0/0"), "the provider's allow_clients has only"},
		{"wider targets", limited, args("--allow-target=127.0.0.0/8"), "--allow-target 127.0.0.0/8: the provider's allow_targets has only 172.16.0.0/12"},
		{"any private target", nil, args("--allow-target=10.0.0.0/8"), "the provider's allow_targets has only none"},
		{"longer idle", limited, args("--idle-timeout=2m"), "--idle-timeout 2m0s: the provider's idle_timeout is 1m0s"},
		{"no idle limit", limited, args("--idle-timeout=0"), "--idle-timeout 0s"},
		{"longer", limited, args("--max-duration=2h"), "--max-duration 2h0m0s"},
		{"command not allowed", limited, func(s *provider.Spec) { s.Command = "squid" }, `command: "squid": this provider runs the built-in proxy only`},
		{"relative command", nil, func(s *provider.Spec) { s.Command = "bin/squid" }, `command: "bin/squid": want an absolute path`},
		{"nothing special", limited, func(*provider.Spec) {}, ""},
		{"narrower", limited, args("--allow-client=10.1.0.0/16", "--allow-target=172.16.1.1", "--idle-timeout=10s", "--max-duration=1m"), ""},
		{"command", nil, func(s *provider.Spec) { s.Command, s.Args = "squid", []string{"-N"} }, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			p := newProvider(t, t.TempDir(), "test", test.options)
			spec := provider.Spec{Name: provider.Name("test", "a", "b"), Listen: "127.0.0.1", Port: 3128}
			test.change(&spec)
			err := p.Validate(spec)
			if test.want == "" {
				if err != nil {
					t.Fatal(err)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), test.want) || !errors.Is(err, provider.ErrPermanent) {
				t.Fatalf("got %v, want a permanent error with %q", err, test.want)
			}
		})
	}
}

func TestUser(t *testing.T) {
	for _, test := range []struct {
		name, operator, task, want string
	}{
		{"task asks for root", "", "root", `user: "root": want an account other than root`},
		{"task asks for root by number", "", "0", `user: "0": want an account other than root`},
		{"another than the operator's", "daemon", "nobody", `user: "nobody": this provider runs everything as "daemon"`},
		{"unknown", "", "no-such-account", `user: "no-such-account": no such account`},
		{"nobody chose", "", "", ""},
		{"operator chose root", "root", "", ""},
		{"task chose", "", "daemon", ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			options := map[string]any{}
			if test.operator != "" {
				options["user"] = test.operator
			}
			_, err := newProvider(t, t.TempDir(), "test", options).account(provider.Spec{User: test.task})
			if test.want == "" && err == nil {
				return
			}
			if test.want == "" || err == nil || !strings.Contains(err.Error(), test.want) || !errors.Is(err, provider.ErrPermanent) {
				t.Fatalf("got %v, want a permanent error with %q", err, test.want)
			}
		})
	}
}

func TestOptions(t *testing.T) {
	for _, test := range []struct {
		options map[string]any
		want    string
	}{
		{map[string]any{"alow_clients": []string{}}, `unknown key "alow_clients"`},
		{map[string]any{"allow_clients": []string{"10.0.0.0/99"}}, `allow_clients: "10.0.0.0/99": want a network`},
		{map[string]any{"allow_targets": []string{"localhost"}}, `allow_targets: "localhost"`},
		{map[string]any{"allow_targets": []string{"::ffff:10.0.0.0/104"}}, "want it as IPv4"},
		{map[string]any{"idle_timeout": "-1s"}, "idle_timeout: -1s"},
		{map[string]any{"max_duration": "-1s"}, "max_duration: -1s"},
		{map[string]any{"log_max_mib": 0}, "log_max_mib: 0: want 1 to 1024"},
	} {
		_, err := New(provider.Config{Options: test.options}, provider.Env{StateDir: t.TempDir()})
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%v: %v, want %q", test.options, err, test.want)
		}
	}
	p := newProvider(t, t.TempDir(), "test", nil)
	if p.limits.IdleTimeout != 10*time.Minute || len(p.limits.AllowTargets) != 0 || len(p.limits.AllowClients) == 0 {
		t.Errorf("defaults: %+v", p.limits)
	}
	if p := newProvider(t, t.TempDir(), "test", map[string]any{"allow_clients": []string{}}); len(p.limits.AllowClients) != 0 {
		t.Errorf("an empty allow_clients allows %v", p.limits.AllowClients)
	}
}
