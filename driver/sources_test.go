package driver

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/egress-proxies/egress/provider"
	"github.com/egress-proxies/egress/provider/fake"
)

var fakes = provider.Factories{"process": func(provider.Config, provider.Env) (provider.Provider, error) {
	return fake.New(fake.Options{}), nil
}}

func TestSourcesOfAnAgentsFileOfADirectoryAndOfABareConfig(t *testing.T) {
	const bare = `provider "local" { type = "process" }`
	dir := t.TempDir()
	for name, text := range map[string]string{
		"bare/x.hcl":        bare,
		"agent/x.hcl":       `data_dir = "/x" plugin "egress" { config { ` + bare + ` } }`,
		"agent/a.hcl":       `server { enabled = true }`,
		"none/x.hcl":        `client { enabled = true } plugin "docker" { config { x = "y" } }`,
		"broken/x.hcl":      `plugin "egress" { config { provider "local" { type = "proces" } } }`,
		"broken-bare/x.hcl": `clusterr = "x" ` + bare,
	} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for path, want := range map[string]string{
		"none":        `no plugin "egress" block`,
		"nowhere":     "no such file",
		"broken":      `type "proces": want one of process`,
		"broken-bare": "clusterr",
		"agent":       "", "agent/x.hcl": "", "bare/x.hcl": "",
	} {
		sources, closeAll, err := Sources(fakes)([]string{filepath.Join(dir, path)}, hclog.NewNullLogger())
		if want != "" {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v, want %q", path, err, want)
			}
			continue
		}
		if err != nil || len(sources) != 1 || sources[0].Name != "local" || sources[0].Type != "process" {
			t.Errorf("%s: %+v, %v", path, sources, err)
			continue
		}
		if err := closeAll(); err != nil {
			t.Errorf("%s: close: %v", path, err)
		}
	}
}

func TestTheScheduleOfChecksIsConfigured(t *testing.T) {
	packed, err := packConfig(`fingerprint { interval = "2s" timeout = "1s" }`)
	if err != nil {
		t.Fatal(err)
	}
	config, err := decodeConfig(packed)
	if err != nil || config.Fingerprint != (FingerprintConfig{Interval: 2 * time.Second, Timeout: time.Second}) {
		t.Errorf("%+v, %v", config.Fingerprint, err)
	}
	if packed, err = packConfig(`fingerprint { interval = "0s" timeout = "soon" }`); err != nil {
		t.Fatal(err)
	}
	_, err = decodeConfig(packed)
	for _, want := range []string{`fingerprint: interval "0s": want at least 100ms`, `fingerprint: timeout "soon": want a duration`} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}
