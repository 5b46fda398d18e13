package driver

import (
	"net/http"
	"strings"
	"testing"

	consul "github.com/hashicorp/consul/api"
	nomad "github.com/hashicorp/nomad/api"
)

func TestAddressesOfConsul(t *testing.T) {
	for _, bad := range []string{
		"bogus:port:1", "127.0.0.1", ":8500", "127.0.0.1:0", "127.0.0.1:65536", "127.0.0.1:http", "127.0.0.1:8500/", "a b:1",
		"[::1:8500", "::1:8500", "tcp://127.0.0.1:8500", "http:/127.0.0.1:8500", "http://", "http://:8500", "http://a:b",
		"https://a:8500?x", "https://a:8500#", "http://user:hunter2@a:8500", "user:hunter2@a:8500", "unix://relative", "unix://",
		" 127.0.0.1:8500", "127.0.0.1:8500 ", "http://a\n:1", `"a":1`,
	} {
		p := newProblems()
		p.in("consul").consulAddress("address", bad)
		err := p.err()
		if err == nil || !strings.HasPrefix(err.Error(), `consul: address "`) || !strings.Contains(err.Error(), "want HOST:PORT") {
			t.Errorf("%q: %v, want an error that names the key", bad, err)
			continue
		}
		if strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%q: the error shows the password: %v", bad, err)
		}
	}
	for _, good := range []string{
		"", "127.0.0.1:8500", "[::1]:8500", "consul.service:8500", "http://127.0.0.1:8500", "https://consul.example",
		"https://consul.example/prefix", "https://consul.example:8501/", "unix:///run/consul.sock", "http://[::1]:8500",
	} {
		p := newProblems()
		if p.consulAddress("address", good); p.err() != nil {
			t.Errorf("%q: %v", good, p.err())
		}
	}
}

func TestAddressesOfNomad(t *testing.T) {
	for _, bad := range []string{
		"bogus:port:1", "127.0.0.1:4646", "http://", "http://:4646", "tcp://a:1", "unix://x", "https://a:4646/?region=x",
		"https://user:hunter2@a:4646", "http://a:99999", "http://a b",
	} {
		p := newProblems()
		p.in("nomad").nomadAddress("address", bad)
		if err := p.err(); err == nil || !strings.Contains(err.Error(), "want a URL such as") || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%q: %v, want an error that names the key and no password", bad, err)
		}
	}
	for _, good := range []string{"", "http://127.0.0.1:4646", "https://nomad.example", "http://[::1]:4646/", "unix:///run/nomad.sock"} {
		p := newProblems()
		if p.nomadAddress("address", good); p.err() != nil {
			t.Errorf("%q: %v", good, p.err())
		}
	}
}

func TestAddressesToListenOn(t *testing.T) {
	for value, good := range map[string]bool{
		"": false, "9464": false, "127.0.0.1": false, "127.0.0.1:x": false, "127.0.0.1:70000": false, "a b:1": false, "[::1:1": false,
		":9464": true, "127.0.0.1:9464": true, "[::1]:9464": true, "127.0.0.1:0": true, "localhost:9464": true,
	} {
		p := newProblems()
		if p.listenAddress("address", value); (p.err() == nil) != good {
			t.Errorf("%q: %v, want it accepted: %v", value, p.err(), good)
		}
	}
}

// FuzzAddresses: what is accepted, the clients can make a request of.
func FuzzAddresses(f *testing.F) {
	for _, seed := range []string{"bogus:port:1", "127.0.0.1:8500", "https://a/b", "unix:///run/x", "http://[::1]:1", "http://a%zz", "%:1"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, value string) {
		p := newProblems()
		if p.consulAddress("address", value); p.err() == nil {
			if _, err := consul.NewClient(&consul.Config{Address: value, HttpClient: http.DefaultClient}); err != nil {
				t.Errorf("Consul's client refuses %q: %v", value, err)
			}
			if !strings.Contains(value, "://") && value != "" {
				if _, err := http.NewRequest(http.MethodGet, "http://"+value+"/", nil); err != nil {
					t.Errorf("%q makes no URL: %v", value, err)
				}
			}
		}
		p = newProblems()
		if p.nomadAddress("address", value); p.err() == nil {
			if _, err := nomad.NewClient(&nomad.Config{Address: value}); err != nil {
				t.Errorf("Nomad's client refuses %q: %v", value, err)
			}
		}
	})
}
