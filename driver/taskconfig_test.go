package driver

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/hashicorp/nomad/nomad/structs"
	"github.com/hashicorp/nomad/plugins/drivers"
)

const twoProviders = `
  state_dir = "%STATE%"
  probe { urls = ["http://target.test/"] }
  provider "fake" { type = "fake" }
  provider "other" { type = "fake" }
`

type m = map[string]any

func TestTaskErrorsNameKeyValueAndWish(t *testing.T) {
	block := func(inner m) []m { return []m{inner} }
	tests := []struct {
		name   string
		plugin string
		config m
		want   string
	}{
		{"provider", testConfig, m{"provider": "nope"}, `provider "nope": want one of fake`},
		{"no provider", twoProviders, m{}, `provider is missing: want one of fake, other`},
		{"max_leases", testConfig, m{"max_leases": "some"}, `max_leases "some": want a whole number from 0 to 1000000`},
		{"negative max_leases", testConfig, m{"max_leases": -1}, `max_leases "-1": want`},
		{"drain", testConfig, m{"drain": "10"}, `drain "10": want a duration with its unit`},
		{"start_timeout", testConfig, m{"start_timeout": "0s"}, `start_timeout "0s": want at least 1s`},
		{"port label", testConfig, m{"port": "http"}, `port "http": the group's network has no port of that label: want one of the labels "proxy"`},
		{"port number", testConfig, m{"port": 70000}, `port "70000": want a port label, or a number from 1 to 65535`},
		{"bind", testConfig, m{"bind": "eth0"}, `bind "eth0": want an IP address`},
		{"two user_data", testConfig, m{"user_data": "a", "user_data_file": "b"}, `user_data_file "b": user_data is set too`},
		{"user_data_file", testConfig, m{"user_data_file": "local/none"}, `user_data_file "local/none": no such file`},
		{"endpoint", testConfig, m{"endpoint": block(m{"host": "p.example", "port": 1})},
			`endpoint: host "p.example": provider "fake" launches its own proxies`},
		{"endpoint port", testConfig, m{"endpoint": block(m{"host": "p.example", "port": 0})}, `endpoint: port "0": want a whole number from 1`},
		{"colon", testConfig, m{"auth": block(m{"username": "a:b", "password": "c"})}, `auth: username "a:b": want one without a colon`},
		{"password alone", testConfig, m{"auth": block(m{"password": "sesame"})}, `auth: username is missing`},
		{"empty auth", testConfig, m{"auth": block(m{})}, `auth: name is missing`},
		{"credentials", testConfig, m{"auth": block(m{"name": "crawl"})}, `auth: name "crawl": the plugin has no credentials_file`},
		{"probe url", testConfig, m{"probe": block(m{"urls": []string{"ftp://x/"}})}, `probe: urls: "ftp://x/": scheme "ftp": want http or https`},
		{"probe bool", testConfig, m{"probe": block(m{"enabled": "on"})}, `probe: enabled "on": want true or false`},
		{"tag", testConfig, m{"service": block(m{"tags": []string{"a", ""}})}, `service: tags[1] "": want a tag`},
		{"no urls", strings.Replace(testConfig, `probe { urls = ["http://target.test/"] }`, "", 1), m{},
			`probe: urls is missing: want at least one URL`},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			h := startHarness(t, newParts(t), test.plugin)
			_, _, err := h.StartTask(h.task("1", test.config))
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Fatalf("error %v, want %q", err, test.want)
			}
			if recoverable(err) {
				t.Error("recoverable, although only a person can cure it")
			}
			if strings.Contains(err.Error(), "sesame") || strings.Contains(err.Error(), "\n") {
				t.Errorf("error %q shows a password or has several lines", err)
			}
			h.nothingLeft()
		})
	}
}

// What HCL itself refuses never reaches the driver; Nomad shows its message as
// "Failed Validation".
func TestTaskSchemaNamesTheKey(t *testing.T) {
	for config, want := range map[string]m{
		`"prot"`:                            {"prot": "x"},
		`attribute "port": string required`: {"port": []string{"x"}},
		`attribute "args": list of string`:  {"args": "x"},
		`"colour"`:                          {"service": []m{{"colour": "x"}}},
	} {
		if _, err := pack(want, taskConfigSpec); err == nil || !strings.Contains(err.Error(), config) {
			t.Errorf("%v: error %v, want %q in it", want, err, config)
		}
	}
}

func TestAttributesAreAMapOrABlock(t *testing.T) {
	for name, attributes := range map[string]any{"map": m{"country": "DE"}, "block": []m{{"country": "DE"}}} {
		h := newHarness(t)
		h.start(h.task("1", m{"attributes": attributes}))
		if entry, _ := h.parts.consul.get(h.parts.names()[0]); entry.endpoint.Attributes["country"] != "DE" {
			t.Errorf("as a %s: %+v", name, entry.endpoint.Attributes)
		}
	}
}

func TestPortResolution(t *testing.T) {
	node, vm := &place{kind: "process"}, &place{kind: "kvm"}
	resources := &drivers.Resources{Ports: &structs.AllocatedPorts{
		{Label: "proxy", Value: 25000, To: 3128, HostIP: "192.0.2.1"}, {Label: "admin", Value: 25001, HostIP: "192.0.2.1"},
	}}
	one := &drivers.Resources{Ports: &structs.AllocatedPorts{{Label: "proxy", Value: 25000, HostIP: "192.0.2.1"}}}
	old := &drivers.Resources{NomadResources: &structs.AllocatedTaskResources{Networks: structs.Networks{
		{IP: "192.0.2.2", DynamicPorts: []structs.Port{{Label: "proxy", Value: 26000}}},
	}}}
	tests := []struct {
		name      string
		port      string
		place     *place
		resources *drivers.Resources
		want      listener
	}{
		{"label on the node", "proxy", node, resources, listener{"proxy", 25000, "192.0.2.1"}},
		{"label in a machine", "proxy", vm, resources, listener{"proxy", 3128, "192.0.2.1"}},
		{"label without to", "admin", vm, resources, listener{"admin", 25001, "192.0.2.1"}},
		{"number of a label", "25001", node, resources, listener{"admin", 25001, "192.0.2.1"}},
		{"number", "8080", vm, nil, listener{"", 8080, ""}},
		{"unset, one port", "", node, one, listener{"proxy", 25000, "192.0.2.1"}},
		{"unset, a machine", "", vm, nil, listener{"", defaultPort, ""}},
		{"the task's own network", "proxy", node, old, listener{"proxy", 26000, "192.0.2.2"}},
	}
	for _, test := range tests {
		if got, err := resolvePort(test.port, test.place, test.resources); err != nil || got != test.want {
			t.Errorf("%s: %+v, %v, want %+v", test.name, got, err, test.want)
		}
	}
	if _, err := resolvePort("", node, nil); err == nil || !strings.Contains(err.Error(), `network { port "proxy" {} }`) {
		t.Errorf("no port on the node: %v, want to be told how to add one", err)
	}
}

func TestUserDataFileStaysInTheAllocation(t *testing.T) {
	cfg := &drivers.TaskConfig{Name: "proxy", AllocDir: t.TempDir()}
	local := filepath.Join(cfg.AllocDir, "proxy", "local")
	if err := os.MkdirAll(local, 0o700); err != nil {
		t.Fatal(err)
	}
	secret := filepath.Join(t.TempDir(), "shadow")
	content := []byte("#cloud-config\x00\r\n\xff")
	for _, err := range []error{
		os.WriteFile(secret, []byte("secret"), 0o600), os.WriteFile(filepath.Join(local, "ok"), content, 0o600),
		os.Symlink(secret, filepath.Join(local, "link")), syscall.Mkfifo(filepath.Join(local, "fifo"), 0o600),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, path := range []string{"../../../etc/hostname", "/etc/hostname", secret, "local/link", "local/fifo", "local"} {
		if got, err := userData(cfg, taskConfig{UserDataFile: path}); err == nil {
			t.Errorf("%s was read: %q", path, got)
		}
	}
	for _, path := range []string{"local/ok", filepath.Join(local, "ok"), "../proxy/local/ok"} {
		if got, err := userData(cfg, taskConfig{UserDataFile: path}); err != nil || string(got) != string(content) {
			t.Errorf("%s: %q, %v, want it byte for byte", path, got, err)
		}
	}
}

func TestParseTaskID(t *testing.T) {
	if got, err := parseTaskID("a-b/web proxy/1234abcd"); err != nil || got != (slot{"a-b", "web proxy"}) {
		t.Errorf("%+v, %v", got, err)
	}
	for _, bad := range []string{"", "a", "a/b", "/b/c", "a//c"} {
		if _, err := parseTaskID(bad); err == nil {
			t.Errorf("%q was accepted", bad)
		}
	}
}
