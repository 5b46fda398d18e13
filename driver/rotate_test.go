package driver

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/plugins/drivers"

	"github.com/egress-proxies/egress/provider"
	"github.com/egress-proxies/egress/provider/fake"
)

// secrets is a credentials file with the entry "crawl".
type secrets struct {
	t    *testing.T
	path string
}

func newSecrets(t *testing.T) secrets {
	s := secrets{t, filepath.Join(t.TempDir(), "credentials.json")}
	s.set("first")
	return s
}

// set replaces the file by one with another password.
func (s secrets) set(password string) {
	s.write(`{"crawl":{"username":"u","password":"` + password + `"}}`)
}

func (s secrets) write(text string) {
	s.t.Helper()
	next := s.path + ".new"
	if err := os.WriteFile(next, []byte(text), 0o600); err != nil {
		s.t.Fatal(err)
	}
	if err := os.Rename(next, s.path); err != nil {
		s.t.Fatal(err)
	}
}

func (s secrets) config() string { return testConfig + "credentials_file = \"" + s.path + "\"\n" }

func named(name string) m { return m{"auth": []m{{"name": name}}} }

func credential(password string) provider.Credentials {
	return provider.Credentials{Username: "u", Password: password}
}

// presents is true when the probe uses the password.
func (p *parts) presents(password string) bool {
	p.probe.mu.Lock()
	defer p.probe.mu.Unlock()
	used := p.probe.used
	return len(used) > 0 && used[len(used)-1] == [2]string{"u", password}
}

// said waits for an event with all the parts.
func said(t *testing.T, events <-chan *drivers.TaskEvent, parts ...string) {
	t.Helper()
	late := time.After(patience)
	for {
		select {
		case event := <-events:
			if !slices.ContainsFunc(parts, func(part string) bool { return !strings.Contains(event.Message, part) }) {
				return
			}
		case <-late:
			t.Fatalf("no event with %q", parts)
		}
	}
}

func TestCredentialsComeFromTheirFileAndFollowIt(t *testing.T) {
	parts, file := newParts(t), newSecrets(t)
	h := startHarness(t, parts, file.config())
	events, err := h.TaskEvents(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	h.start(h.task("1", named("crawl")))
	name := parts.names()[0]
	if first := parts.probe.first(); first.Username != "u" || first.Password != "first" {
		t.Error("the first probe has other credentials than the file")
	}
	if entry, _ := parts.consul.get(name); entry.endpoint.Auth != "crawl" {
		t.Errorf("auth %q in Consul, want the name", entry.endpoint.Auth)
	}
	if given := parts.provider.World().Rotations(name); len(given) != 0 {
		t.Errorf("%d rotations without a change", len(given))
	}
	file.set("second")
	eventually(t, "the probe uses the new password", func() bool { return parts.presents("second") })
	if given := parts.provider.World().Rotations(name); len(given) != 1 || given[0] != credential("second") {
		t.Errorf("the instance was given %v before the probe", given)
	}
	said(t, events, `Credentials "crawl" were renewed`)
}

func TestCredentialsOfAProxyThatIsNotProbed(t *testing.T) {
	parts, file := newParts(t), newSecrets(t)
	h := startHarness(t, parts, file.config())
	config := named("crawl")
	config["probe"] = []m{{"enabled": false}}
	h.start(h.task("1", config))
	file.set("second")
	eventually(t, "the instance has the new password", func() bool {
		return slices.Contains(parts.provider.World().Rotations(parts.names()[0]), credential("second"))
	})
}

// TestCredentialsThatChangedWhileThePluginWasDown reach the instance all the
// same, also when the file was broken by then and is mended later.
func TestCredentialsThatChangedWhileThePluginWasDown(t *testing.T) {
	parts, file := newParts(t), newSecrets(t)
	h := startHarness(t, parts, file.config())
	handle, _ := h.start(h.task("1", named("crawl")))
	if err := h.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	file.write("{")
	h = startHarness(t, parts, file.config())
	if err := h.RecoverTask(handle); err != nil {
		t.Fatal(err)
	}
	count := func() int {
		parts.probe.mu.Lock()
		defer parts.probe.mu.Unlock()
		return len(parts.probe.probed)
	}
	probed := count()
	file.set("second")
	name := parts.names()[0]
	eventually(t, "the instance has the new password", func() bool {
		return slices.Contains(parts.provider.World().Rotations(name), credential("second"))
	})
	eventually(t, "the proxy is probed again", func() bool { return count() > probed })
}

func TestRotationThatFailsIsTriedAgain(t *testing.T) {
	parts, file := newParts(t), newSecrets(t)
	h := startHarness(t, parts, file.config())
	h.start(h.task("1", named("crawl")))
	parts.provider.Fail(fake.StepRotate, 3, errors.New("connection refused"))
	file.set("second")
	eventually(t, "the instance has the new password", func() bool {
		return slices.Contains(parts.provider.World().Rotations(parts.names()[0]), credential("second"))
	})
}

// TestRotationThatNeedsARestartSaysSo once, with the command; clients come with
// the new ones, so the probe does too.
func TestRotationThatNeedsARestartSaysSo(t *testing.T) {
	for name, prepare := range map[string]func(*parts){
		"a provider that can't":  func(p *parts) { p.bare = true },
		"an instance that can't": func(p *parts) { p.provider.Fail(fake.StepRotate, -1, provider.Permanentf("no")) },
	} {
		t.Run(name, func(t *testing.T) {
			parts, file := newParts(t), newSecrets(t)
			prepare(parts)
			h := startHarness(t, parts, file.config())
			events, err := h.TaskEvents(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			cfg := h.task("1", named("crawl"))
			h.start(cfg)
			file.set("second")
			said(t, events, `Credentials "crawl" have changed`, "nomad alloc restart "+cfg.AllocID)
			eventually(t, "the probe uses the new password", func() bool { return parts.presents("second") })
			if len(events) > 0 {
				t.Errorf("said again: %s", (<-events).Message)
			}
		})
	}
}

func TestBadCredentialsFileNeverShowsAPassword(t *testing.T) {
	for name, test := range map[string]struct{ text, want string }{
		"no JSON":            {"hunter2", "want {"},
		"a number":           {`{"crawl":{"username":"u","password":4711}}`, "want a string"},
		"no object":          {`{"crawl":"hunter2"}`, "want an object"},
		"no username":        {`{"crawl":{"password":"hunter2"}}`, `entry "crawl": want a username`},
		"colon":              {`{"crawl":{"username":"a:b","password":"hunter2"}}`, `entry "crawl": want a username`},
		"cut off in the end": {`{"crawl":{"username":"u","password":"hunter2"`, "unexpected end"},
	} {
		file := newSecrets(t)
		file.write(test.text)
		_, err := newCredentials(file.path, hclog.NewNullLogger()).lookup(authConfig{Name: "crawl"})
		if !errors.Is(err, provider.ErrTransient) || !strings.Contains(err.Error(), test.want) || !strings.Contains(err.Error(), file.path) {
			t.Errorf("%s: %v, want the path and %q", name, err, test.want)
		}
		if strings.Contains(err.Error(), "hunter2") || strings.Contains(err.Error(), "4711") {
			t.Errorf("%s: the error shows the password: %v", name, err)
		}
	}
}
