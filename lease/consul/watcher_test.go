package consul

import (
	"context"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/egress-proxies/egress/lease"
	"github.com/egress-proxies/egress/lease/leasetest"
)

// seen is what a watcher told last.
type seen struct {
	mu    sync.Mutex
	list  []*lease.Proxy
	times int
}

func (s *seen) update(list []*lease.Proxy) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.list, s.times = list, s.times+1
}

// wants waits until the pool is "id:state,…".
func (s *seen) wants(t *testing.T, want string) {
	t.Helper()
	leasetest.Until(t, 30*time.Second, "the pool is "+want, func() error {
		s.mu.Lock()
		defer s.mu.Unlock()
		var parts []string
		for _, p := range s.list {
			state := "up"
			if !p.Healthy {
				state = "down"
			}
			parts = append(parts, p.ID+":"+state)
		}
		if got := strings.Join(parts, ","); got != want || s.times == 0 {
			return &lease.FieldError{Field: "pool", Value: got, Pos: -1}
		}
		return nil
	})
}

func watch(t *testing.T, c WatcherConfig) (*Watcher, *seen) {
	s := &seen{}
	c.Update = s.update
	w := NewWatcher(c)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = w.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	return w, s
}

func TestWatcherFollowsTheCatalogAndOutlivesConsul(t *testing.T) {
	consul := leasetest.StartConsul(t)
	w, pool := watch(t, WatcherConfig{Client: consul.Client, Services: []string{"egress-proxy", "bought"}})
	pool.wants(t, "")
	consul.Proxy("a", "10.0.0.1", 3128, "passing", map[string]string{"exit_ip": "::ffff:192.0.2.1", "max_leases": "0", "auth": "crawl", "country": "DE"})
	pool.wants(t, "a:up")
	a := pool.list[0]
	if a.ExitIP != netip.MustParseAddr("192.0.2.1") || a.MaxLeases != 0 || a.Auth != "crawl" || a.Attributes["country"] != "DE" || a.HostPort() != "10.0.0.1:3128" {
		t.Errorf("%+v", a)
	}
	consul.Proxy("b", "2001:db8::1", 3128, "critical", nil)
	pool.wants(t, "a:up,b:down")
	if err := consul.Client.Agent().UpdateTTL("egress-b", "proxy works", api.HealthPassing); err != nil {
		t.Fatal(err)
	}
	pool.wants(t, "a:up,b:up")
	if err := consul.Client.Agent().ServiceDeregister("egress-b"); err != nil {
		t.Fatal(err)
	}
	pool.wants(t, "a:up")

	consul.Kill()
	leasetest.Until(t, 30*time.Second, "the outage is seen", func() error {
		if w.Problem() == nil || w.Age() == 0 {
			return os.ErrInvalid
		}
		return nil
	})
	pool.wants(t, "a:up")
	consul.Start()
	consul.Proxy("c", "10.0.0.3", 3128, "passing", nil)
	pool.wants(t, "a:down,c:up") // the check of a was not renewed meanwhile
	leasetest.Until(t, 30*time.Second, "the outage is over", func() error { return w.Problem() })
}

func TestPoolIsUnknownWhileConsulIsDown(t *testing.T) {
	config := api.DefaultConfig()
	config.Address = "127.0.0.1:" + leasetest.FreePort(t)
	client, err := api.NewClient(config)
	if err != nil {
		t.Fatal(err)
	}
	w, pool := watch(t, WatcherConfig{Client: client, Services: []string{"egress-proxy"}})
	leasetest.Until(t, 30*time.Second, "the failure is told", func() error {
		if err := w.Problem(); err == nil || !strings.Contains(err.Error(), config.Address) {
			return os.ErrInvalid
		}
		return nil
	})
	if pool.times != 0 {
		t.Error("an unknown pool was told")
	}
}

func TestIndexThatGoesBackIsVoid(t *testing.T) {
	for _, test := range []struct{ last, got, want uint64 }{{0, 7, 7}, {7, 9, 9}, {9, 7, 0}, {0, 0, 1}, {7, 7, 7}} {
		if next := nextIndex(test.last, test.got); next != test.want {
			t.Errorf("after %d came %d: next %d, want %d", test.last, test.got, next, test.want)
		}
	}
}

func TestEntriesThatCannotBeUsedAreRefused(t *testing.T) {
	for name, change := range map[string]func(*entry){
		"no port":     func(e *entry) { e.Service.Port = 0 },
		"no address":  func(e *entry) { e.Service.Address = "" },
		"no id":       func(e *entry) { e.Service.ID = "" },
		"bad limit":   func(e *entry) { e.Service.Meta = map[string]string{"max_leases": "many"} },
		"bad limit 2": func(e *entry) { e.Service.Meta = map[string]string{"max_leases": "-1"} },
		"bad exit":    func(e *entry) { e.Service.Meta = map[string]string{"exit_ip": "somewhere"} },
	} {
		var e entry
		e.Service.ID, e.Service.Address, e.Service.Port = "a", "10.0.0.1", 1
		change(&e)
		if p, err := e.proxy(); err == nil {
			t.Errorf("%s: %+v", name, p)
		}
	}
}

// Case 28.
func TestWhereAnExitReallyIsWinsOverItsLabel(t *testing.T) {
	path := filepath.Join(t.TempDir(), "networks")
	if err := os.WriteFile(path, []byte("# ours\n192.0.2.0/24 country=DE\n192.0.2.128/25, country=FR city=Lyon\n2001:db8::/32 country=SE\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	facts, err := LoadFacts(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	poland, err := lease.ParseSelector("country=PL")
	if err != nil {
		t.Fatal(err)
	}
	for exit, want := range map[string]string{"192.0.2.1": "DE", "192.0.2.200": "FR", "2001:db8::9": "SE", "198.51.100.1": "PL", "": "PL"} {
		e := entry{}
		e.Service.ID, e.Service.Address, e.Service.Port = "a", "10.0.0.1", 1
		e.Service.Meta = map[string]string{"country": "PL", "exit_ip": exit}
		p, err := e.proxy()
		if err != nil {
			t.Fatal(err)
		}
		p = facts.apply([]*lease.Proxy{p})[0]
		if got := p.Attributes["country"]; got != want || poland.Matches(p) != (want == "PL") {
			t.Errorf("exit %s: country %s, want %s", exit, got, want)
		}
	}
	measured := entry{}
	measured.Service.ID, measured.Service.Address, measured.Service.Port = "a", "10.0.0.1", 1
	measured.Service.Meta = map[string]string{"country": "PL", "exit_country": "DE"}
	if p, err := measured.proxy(); err != nil || poland.Matches(p) {
		t.Errorf("measured DE is leased for PL: %v", err)
	}
	for _, bad := range []string{"nonsense", "192.0.2.0/24 country", "192.0.2.0/99 a=b"} {
		if _, err := parseFacts([]byte(bad)); err == nil {
			t.Errorf("%q was accepted", bad)
		}
	}
}

func TestCredentialsAreReadAgainAndABrokenFileIsIgnored(t *testing.T) {
	path := filepath.Join(t.TempDir(), "credentials.json")
	write := func(text string) {
		if err := os.WriteFile(path+".new", []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(path+".new", path); err != nil {
			t.Fatal(err)
		}
	}
	write(`{"crawl":{"username":"u","password":"p"}}`)
	c, err := LoadCredentials(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	changed := make(chan struct{}, 10)
	go func() { _ = c.Run(ctx, func() { changed <- struct{}{} }) }()
	leasetest.Until(t, 10*time.Second, "the new password is known", func() error {
		write(`{"crawl":{"username":"u","password":"new"}}`)
		if _, password, _ := c.Get("crawl"); password != "new" {
			return os.ErrInvalid
		}
		return nil
	})
	<-changed
	for _, bad := range []string{"{", `{"a":{"username":"x:y","password":"geheim"}}`, `{"a":{"password":"geheim"}}`, `{"a":{"username":"x","pass":"geheim"}}`} {
		if _, err := parseCredentials([]byte(bad)); err == nil || strings.Contains(err.Error(), "geheim") {
			t.Errorf("%s: %v", bad, err)
		}
	}
}

func TestCredentialsComeFromConsulToo(t *testing.T) {
	consul := leasetest.StartConsul(t)
	c, err := LoadCredentials("", nil)
	if err != nil {
		t.Fatal(err)
	}
	c.FromKV(consul.Client, "egress/credentials/")
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = c.Run(ctx, func() {})
	}()
	defer func() {
		cancel()
		<-done
	}()
	for _, want := range []string{"one", "p@:#$/%"} {
		for key, value := range map[string]string{"crawl": `{"username":"u","password":"` + want + `"}`, "broken": "{"} {
			if _, err := consul.Client.KV().Put(&api.KVPair{Key: "egress/credentials/" + key, Value: []byte(value)}, nil); err != nil {
				t.Fatal(err)
			}
		}
		leasetest.Until(t, 20*time.Second, "the password is known", func() error {
			if user, password, ok := c.Get("crawl"); !ok || user != "u" || password != want {
				return os.ErrInvalid
			}
			return nil
		})
	}
	if c.Known("broken") {
		t.Error("a broken one is known")
	}
}
