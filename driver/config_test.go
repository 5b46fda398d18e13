package driver

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/go-hclog"

	"github.com/egress-proxies/egress/provider"
)

func parsed(t testing.TB, text string) (Config, error) {
	t.Helper()
	packed, err := packConfig(text)
	if err != nil {
		return Config{}, err
	}
	return decodeConfig(packed)
}

func TestConfigErrorsNameKeyValueAndWish(t *testing.T) {
	tests := []struct{ name, config, want string }{
		{"unknown key", `clusterr = "x"`, "clusterr"},
		{"unknown key of a provider", `provider "a" { type = "process" allow_client = ["x"] }`, "allow_client"},
		{"cluster", `cluster = "a/b"`, `cluster name "a/b": character '/'`},
		{"duration without unit", `start_timeout = 90`, `start_timeout "90": want a duration with its unit`},
		{"short duration", `start_timeout = "1ms"`, `start_timeout "1ms": want at least 1s`},
		{"relative state_dir", `state_dir = "var"`, `state_dir "var": want an absolute path`},
		{"bool", `consul { enabled = "maybe" }`, `consul: enabled "maybe": want true or false`},
		{"number", `probe { failures = "many" }`, `probe: failures "many": want a whole number from 1 to 100`},
		{"url", `probe { urls = ["example.com"] }`, `probe: urls: "example.com": scheme "": want http or https`},
		{"port of a url", `probe { exit_ip_url = "http://a:99999/" }`, `probe: exit_ip_url: "http://a:99999/": port "99999": want 1 to 65535`},
		{"relative credentials_file", `credentials_file = "c.json"`, `credentials_file "c.json": want an absolute path`},
		{"relative token_file", `consul { token_file = "t" }`, `consul: token_file "t": want an absolute path`},
		{"relative ca_file", `probe { ca_file = "./ca.pem" }`, `probe: ca_file "./ca.pem": want an absolute path`},
		{"consul", `consul { address = "bogus:port:1" }`, `consul: address "bogus:port:1": want HOST:PORT`},
		{"nomad", `nomad { address = "127.0.0.1:4646" }`, `nomad: address "127.0.0.1:4646": want a URL such as`},
		{"endless duration", `probe { interval = "2000000h" }`, `probe: interval "2000000h": want at most`},
		{"metrics port", `metrics { address = "127.0.0.1:http" }`, `metrics: address "127.0.0.1:http": want an address and a port`},
		{"target_service", `consul { target_service = "a_b" }`, `consul: target_service "a_b": service name "a_b": want`},
		{"one service for two things", `consul { service = "x" target_service = "x" }`, `target_service "x": want another name`},
		{"both tokens", `consul { token = "a" token_file = "/b" }`, `consul: token_file "/b": token is set too`},
		{"metrics", `metrics { address = "9464" }`, `metrics: address "9464": want an address and a port`},
		{"no type", `provider "a" { }`, `provider "a": type is missing`},
		{"number of a provider", `provider "a" { type = "process" log_max_mib = "x" }`, `provider "a": log_max_mib "x": want a number`},
		{"bool of a host", `provider "hv" { type = "kvm" host "h1" { insecure_host_key = "no" } }`,
			`provider "hv": host "h1": insecure_host_key "no": want true or false`},
		{"all at once", `start_timeout = "x"
			consul { enabled = "y" }`, `start_timeout "x"`},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			_, err := parsed(t, test.config)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %v, want %q", err, test.want)
			}
			if err != nil && strings.Contains(err.Error(), "\n") {
				t.Errorf("error %q has more than one line", err)
			}
		})
	}
}

func TestConfigTellsAllProblemsAtOnce(t *testing.T) {
	_, err := parsed(t, `start_timeout = "x"
		consul { enabled = "y" }`)
	if err == nil || !strings.Contains(err.Error(), `"x"`) || !strings.Contains(err.Error(), `"y"`) {
		t.Errorf("error %v, want both problems", err)
	}
}

func TestConfigDefaults(t *testing.T) {
	config, err := parsed(t, `provider "local" { type = "process" }`)
	if err != nil {
		t.Fatal(err)
	}
	want := Config{
		Cluster: "default", StateDir: "/var/lib/egress", StartTimeout: 5 * time.Minute,
		Fingerprint: FingerprintConfig{Interval: 30 * time.Second, Timeout: 20 * time.Second},
		Consul:      ConsulConfig{Enabled: true, Service: "egress-proxy", TargetService: "egress-target", DeregisterAfter: 10 * time.Minute},
		Probe: ProbeConfig{
			Enabled: true, Interval: 10 * time.Second, Timeout: 5 * time.Second, Successes: 1, Failures: 3,
		},
		Providers: []provider.Config{{Name: "local", Type: "process", Options: map[string]any{}}},
	}
	if diff := cmp.Diff(want, config); diff != "" {
		t.Error(diff)
	}
}

// A provider's labelled blocks come through HCL 1, JSON, the schema and
// MessagePack as maps by label.
func TestProviderBlocks(t *testing.T) {
	config, err := parsed(t, `
		provider "local" {
		  type          = "process"
		  allow_clients = ["127.0.0.0/8", "10.0.0.0/8"]
		  command       = false
		  log_max_mib   = 16
		}
		provider "hv" {
		  type = "kvm"
		  host "a" { address = "ssh://root@a:22" pool = "default" insecure_host_key = true }
		  host "b" { address = "unix:///run/libvirt/libvirt-sock" }
		  machine_type "small" { cores = 1 memory_mib = 512 }
		  image_dirs = ["/srv/images"]
		  keepalive  = "10s"
		  image "debian-12" { url = "https://example.com/d.qcow2" sha256 = "00" }
		}
		provider "bought" { type = "external" }`)
	if err != nil {
		t.Fatal(err)
	}
	want := []provider.Config{
		{Name: "bought", Type: "external", Options: map[string]any{}},
		{Name: "hv", Type: "kvm", Options: map[string]any{
			"host": map[string]any{
				"a": map[string]any{"address": "ssh://root@a:22", "pool": "default", "insecure_host_key": true},
				"b": map[string]any{"address": "unix:///run/libvirt/libvirt-sock"},
			},
			"machine_type": map[string]any{"small": map[string]any{"cores": int64(1), "memory_mib": int64(512)}},
			"image_dirs":   []string{"/srv/images"},
			"keepalive":    "10s",
			"image": map[string]any{
				"debian-12": map[string]any{"url": "https://example.com/d.qcow2", "sha256": "00"},
			},
		}},
		{Name: "local", Type: "process", Options: map[string]any{
			"allow_clients": []string{"127.0.0.0/8", "10.0.0.0/8"}, "command": false, "log_max_mib": int64(16),
		}},
	}
	if diff := cmp.Diff(want, config.Providers); diff != "" {
		t.Error(diff)
	}
}

func TestUnknownProviderTypeNamesTheKnown(t *testing.T) {
	config, err := parsed(t, `provider "x" { type = "vmware" }`)
	if err != nil {
		t.Fatal(err)
	}
	_, err = config.Build(provider.Factories{"process": nil, "kvm": nil}, hclog.NewNullLogger())
	if err == nil || !strings.Contains(err.Error(), `type "vmware": want one of kvm, process`) {
		t.Errorf("error %v", err)
	}
}

func TestSetConfigDoesNothingElse(t *testing.T) {
	h := newHarness(t)
	if entries, err := os.ReadDir(h.parts.state); err != nil || len(entries) != 0 {
		t.Errorf("state_dir after SetConfig: %v, %v, want it empty", entries, err)
	}
	if h.begun || h.monitor != nil || h.registrar != nil {
		t.Error("SetConfig began to work")
	}
}

func TestLoadConfigReadsTheAgentsFiles(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("10-base.hcl", "datacenter = \"dc1\"\nclient {\n  enabled = true\n}\n")
	write("note.txt", "plugin \"egress\" {")
	if _, err := LoadConfig(dir); err == nil || !strings.Contains(err.Error(), `no plugin "egress" block in `+dir) {
		t.Errorf("error %v", err)
	}
	write("20-egress.hcl", `
		plugin "docker" { config { allow_privileged = true } }
		plugin "egress" {
		  config {
		    cluster = "prod"
		    provider "local" { type = "process" }
		    provider "other" { type = "external" }
		  }
		}`)
	config, err := LoadConfig(dir)
	if err != nil || config.Cluster != "prod" || len(config.Providers) != 2 {
		t.Errorf("config %+v, %v", config, err)
	}
	write("try.hcl", `provider "hv" { type = "kvm" host "h1" { address = "ssh://h1" } }`)
	if config, err := LoadConfig(filepath.Join(dir, "try.hcl")); err != nil || len(config.Providers) != 1 {
		t.Errorf("a file with the inside of the block: %+v, %v", config, err)
	}
	write("20-egress.hcl", `plugin "egress" { config { cluster = "a/b" } }`)
	if _, err := LoadConfig(dir); err == nil || !strings.Contains(err.Error(), "20-egress.hcl") {
		t.Errorf("error %v, want the file's name", err)
	}
	if _, err := LoadConfig(filepath.Join(dir, "none.hcl")); err == nil || !strings.Contains(err.Error(), "no such file") {
		t.Errorf("error %v", err)
	}
}
