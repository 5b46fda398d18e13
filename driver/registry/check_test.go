package registry

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestCheckAttributes(t *testing.T) {
	many := map[string]string{}
	for i := range MaxAttributes + 1 {
		many[fmt.Sprintf("k%d", i)] = ""
	}
	for name, test := range map[string]struct {
		attributes map[string]string
		want       string
	}{
		"reserved":      {map[string]string{"exit_ip": "x"}, `key "exit_ip": is written by egress itself`},
		"Consul's own":  {map[string]string{"consul-x": "x"}, `the prefix consul- belongs to Consul`},
		"bad character": {map[string]string{"a.b": "x"}, `key "a.b": want letters, digits, - and _`},
		"empty key":     {map[string]string{"": "x"}, `key "": want letters`},
		"long key":      {map[string]string{strings.Repeat("k", 129): "x"}, "has 129 characters: want at most 128"},
		"long value":    {map[string]string{"k": strings.Repeat("v", 513)}, `key "k": the value has 513 bytes: want at most 512`},
		"not text":      {map[string]string{"k": "\xff"}, "want UTF-8"},
		"too many":      {many, "51 attributes: want at most 50"},
		"all is told":   {map[string]string{"a b": "x", "zone": "y"}, `key "zone"`},
		"good":          {map[string]string{"country": "DE", "a-b_1": strings.Repeat("v", 512)}, ""},
		"none":          {nil, ""},
		"as many as fit": {func() map[string]string {
			m := map[string]string{}
			for i := range MaxAttributes {
				m[fmt.Sprint("k", i)] = ""
			}
			return m
		}(), ""},
	} {
		err := CheckAttributes(test.attributes)
		if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
			t.Errorf("%s: error %v, want %q", name, err, test.want)
		}
	}
}

func TestConfigValidate(t *testing.T) {
	for name, test := range map[string]struct {
		config Config
		want   string
	}{
		"scheme":       {Config{Address: "ftp://x"}, `address "ftp://x": scheme "ftp"`},
		"two tokens":   {Config{Token: "s3cret", TokenFile: "/t"}, `token and token_file "/t": want at most one`},
		"service":      {Config{Service: "a_b"}, `service name "a_b"`},
		"too soon":     {Config{DeregisterAfter: time.Second}, "deregister_after 1s: want at least 1m0s"},
		"zero is good": {Config{}, ""},
	} {
		err := test.config.Validate()
		if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
			t.Errorf("%s: error %v, want %q", name, err, test.want)
		}
		if err != nil && strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%s: shows the token", name)
		}
	}
}

func TestRegisterRefusesWhatCannotBePublished(t *testing.T) {
	r := newRegistry(t, Config{})
	for want, change := range map[string]func(*Endpoint){
		`name "a/b"`:      func(e *Endpoint) { e.Name = "a/b" },
		`service name`:    func(e *Endpoint) { e.Service = "-" },
		`address "::1]"`:  func(e *Endpoint) { e.Address = "::1]" },
		`port 0`:          func(e *Endpoint) { e.Port = 0 },
		`max_leases -1`:   func(e *Endpoint) { e.MaxLeases = -1 },
		`key "job": the `: func(e *Endpoint) { e.Job = strings.Repeat("j", 513) },
	} {
		e := endpoint("eg-1")
		change(&e)
		if err := r.Register(e, works("")); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
	if r.owns("eg-1") {
		t.Error("a refused endpoint is registered")
	}
}
