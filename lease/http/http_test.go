package http_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/egress-proxies/egress/lease"
	"github.com/egress-proxies/egress/lease/api"
	leasehttp "github.com/egress-proxies/egress/lease/http"
)

// bench is a lease service behind HTTP.
type bench struct {
	t       *testing.T
	service *lease.Service
	url     string
	token   string
}

func proxy(id string) *lease.Proxy {
	return &lease.Proxy{ID: id, Address: "10.0.0.1", Port: 3128, MaxLeases: 1, Healthy: true,
		ExitIP: netip.MustParseAddr("192.0.2.1").Next(), Attributes: map[string]string{"id": id}}
}

func newBench(t *testing.T, c leasehttp.Config, proxies ...*lease.Proxy) *bench {
	t.Helper()
	s := lease.NewService(lease.Config{})
	if proxies != nil {
		s.SetProxies(proxies)
	}
	s.SetCredentials(func(name string) bool { return name == "crawl" })
	resign, _ := s.Lead(nil, nil)
	c.Service = s
	handler := leasehttp.New(c)
	server := httptest.NewServer(handler)
	t.Cleanup(func() {
		handler.Close()
		server.Close()
		resign()
	})
	return &bench{t: t, service: s, url: server.URL}
}

// call sends a request. in is sent as it is when it is a string.
func (b *bench) call(method, path string, in any, headers ...string) (*http.Response, string) {
	b.t.Helper()
	var body io.Reader
	switch in := in.(type) {
	case nil:
	case string:
		body = strings.NewReader(in)
	default:
		data, _ := json.Marshal(in)
		body = bytes.NewReader(data)
	}
	r, err := http.NewRequestWithContext(b.t.Context(), method, b.url+path, body)
	if err != nil {
		b.t.Fatal(err)
	}
	if b.token != "" {
		r.Header.Set("Authorization", "Bearer "+b.token)
	}
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		b.t.Fatal(err)
	}
	defer response.Body.Close()
	data, err := io.ReadAll(response.Body)
	if err != nil {
		b.t.Fatal(err)
	}
	return response, string(data)
}

// problem calls and wants a problem of the code.
func (b *bench) problem(method, path string, in any, status int, code api.Code, headers ...string) api.Problem {
	b.t.Helper()
	response, body := b.call(method, path, in, headers...)
	var p api.Problem
	if err := json.Unmarshal([]byte(body), &p); err != nil {
		b.t.Fatalf("%s %s: %s %s", method, path, response.Status, body)
	}
	if response.StatusCode != status || p.Status != status || p.Code() != code || p.Title == "" || p.Detail == "" ||
		p.RequestID != response.Header.Get("X-Request-Id") || response.Header.Get("Content-Type") != api.ProblemType {
		b.t.Errorf("%s %s: %s %s; want %d %s", method, path, response.Status, body, status, code)
	}
	return p
}

func (b *bench) leases() []lease.Lease {
	b.t.Helper()
	list, err := b.service.Leases(b.t.Context())
	if err != nil {
		b.t.Fatal(err)
	}
	return list
}

func (b *bench) acquire(in any) api.Lease {
	b.t.Helper()
	response, body := b.call("POST", "/v1/leases", in)
	var out api.Leases
	if err := json.Unmarshal([]byte(body), &out); err != nil || response.StatusCode != http.StatusCreated {
		b.t.Fatalf("acquire: %s %s", response.Status, body)
	}
	return out.Leases[0]
}

func TestWrongRequestsSayWhatIsWrong(t *testing.T) {
	b := newBench(t, leasehttp.Config{}, proxy("a"))
	for body, want := range map[string]struct {
		field    string
		position int
	}{
		`{"selector":"a=b,="}`:                  {"selector", 5},
		`{"target":"ftp://x"}`:                  {"target", 0},
		`{"ttl":"1ms"}`:                         {"ttl", 0},
		`{"ttl":"25h"}`:                         {"ttl", 0},
		`{"count":1000}`:                        {"count", 0},
		`{"count":-1}`:                          {"count", 0},
		`{"count":"many"}`:                      {"count", 0},
		`{"session_mode":"hard"}`:               {"session_mode", 0},
		`{"session":"s","session_mode":"firm"}`: {"session_mode", 0},
		`{"wait":"1h"}`:                         {"wait", 0},
		`{"client":"a\nb"}`:                     {"client", 2},
		`{"selectr":"a"}`:                       {"", 0},
		`{"ttl":"soon"}`:                        {"", 0},
		`{}{}`:                                  {"", 0},
		`[`:                                     {"", 0},
	} {
		p := b.problem("POST", "/v1/leases", body, http.StatusBadRequest, api.CodeInvalid)
		if p.Field != want.field || p.Position != want.position {
			t.Errorf("%s: field %q, position %d; want %q, %d (%s)", body, p.Field, p.Position, want.field, want.position, p.Detail)
		}
	}
	b.problem("POST", "/v1/leases", strings.Repeat(" ", 65<<10), http.StatusRequestEntityTooLarge, api.CodeTooLarge)
	b.problem("POST", "/v1/leases/none/renew", nil, http.StatusNotFound, api.CodeUnknownLease)
	b.problem("POST", "/v1/proxies/none/freeze", nil, http.StatusNotFound, api.CodeUnknownProxy)
	b.problem("GET", "/v1/nothing", nil, http.StatusNotFound, api.CodeNotFound)
	b.problem("GET", "/v1/proxies?limit=0", nil, http.StatusBadRequest, api.CodeInvalid)
	b.problem("GET", "/v1/proxies?format=xml", nil, http.StatusBadRequest, api.CodeInvalid)
	b.problem("PUT", "/v1/leases", nil, http.StatusMethodNotAllowed, api.CodeMethod)
	if response, _ := b.call("PUT", "/v1/leases", nil); len(response.Header.Values("Allow")) != 2 {
		t.Errorf("Allow %v", response.Header.Values("Allow"))
	}
	b.acquire("") // an empty body is an acquire of anything
}

// Case 27.
func TestNoProxyFreeIsNoAuthenticationFailureAndSaysWhenToComeBack(t *testing.T) {
	b := newBench(t, leasehttp.Config{}, proxy("a"))
	b.acquire(`{"ttl":20}`)
	p := b.problem("POST", "/v1/leases", nil, http.StatusConflict, api.CodeNoCapacity)
	if p.Counts == nil || *p.Counts != (api.Counts{Matching: 1, Healthy: 1, AtCapacity: 1}) {
		t.Errorf("counts %+v", p.Counts)
	}
	response, _ := b.call("POST", "/v1/leases", nil)
	if after := response.Header.Get("Retry-After"); after != "20" || p.RetryAfterSeconds != 20 {
		t.Errorf("Retry-After %q and %d, want 20", after, p.RetryAfterSeconds)
	}
	if b.problem("POST", "/v1/leases", `{"selector":"id=z"}`, http.StatusConflict, api.CodeNoMatch).RetryAfterSeconds != 30 {
		t.Error("no time to come back")
	}
}

func TestNothingIsGrantedWhileThePoolIsUnknown(t *testing.T) {
	b := newBench(t, leasehttp.Config{NotReady: func() string { return "no answer from Consul" }})
	if p := b.problem("POST", "/v1/leases", nil, http.StatusServiceUnavailable, api.CodeNotReady); p.RetryAfterSeconds == 0 {
		t.Error("no time to come back")
	}
	response, body := b.call("GET", "/readyz", nil)
	if response.StatusCode != http.StatusServiceUnavailable || !strings.Contains(body, "no answer from Consul") {
		t.Errorf("%s %s", response.Status, body)
	}
	b.service.SetProxies(nil)
	if response, body := b.call("GET", "/readyz", nil); response.StatusCode != http.StatusOK {
		t.Errorf("%s %s", response.Status, body)
	}
	if response, _ := b.call("GET", "/healthz", nil); response.StatusCode != http.StatusOK {
		t.Error(response.Status)
	}
}

func TestLeaseHasItsURLAndTheParts(t *testing.T) {
	p := proxy("a")
	p.Auth, p.Address = "crawl", "2001:db8::1"
	b := newBench(t, leasehttp.Config{Credentials: func(string) (string, string, bool) { return "u", "p@:#$/%", true }}, p)
	l := b.acquire(`{"target":"https://Site.example/x","client":"me"}`)
	if l.URL != "http://u:p%40%3A%23$%2F%25@[2001:db8::1]:3128" || l.Server != "http://[2001:db8::1]:3128" || l.Username != "u" ||
		l.Password != "p@:#$/%" || l.Target != "site.example" || l.TTLSeconds <= 59 || l.ExitIP != "192.0.2.2" || l.ProxyState != "healthy" {
		t.Errorf("%+v", l)
	}
	for _, path := range []string{"/v1/leases", "/v1/leases/" + l.ID, "/v1/proxies"} {
		if _, body := b.call("GET", path, nil); strings.Contains(body, "p@:") || strings.Contains(body, "p%40") {
			t.Errorf("%s shows the password: %s", path, body)
		}
	}
	if response, body := b.call("GET", "/v1/proxies?format=txt", nil); body != l.URL+"\n" || !strings.HasPrefix(response.Header.Get("Content-Type"), "text/plain") {
		t.Errorf("txt: %q", body)
	}
}

func TestLifeOfALease(t *testing.T) {
	b := newBench(t, leasehttp.Config{}, proxy("a"))
	l := b.acquire(nil)
	if response, body := b.call("POST", "/v1/leases/"+l.ID+"/renew", `{"ttl":"5m"}`); response.StatusCode != 200 || !strings.Contains(body, `"renewals":1`) {
		t.Errorf("%s %s", response.Status, body)
	}
	b.problem("POST", "/v1/leases/"+l.ID+"/report", `{"result":"meh"}`, http.StatusBadRequest, api.CodeInvalid)
	b.problem("POST", "/v1/leases/"+l.ID+"/report", `{"result":"blocked"}`, http.StatusBadRequest, api.CodeInvalid)
	if _, body := b.call("POST", "/v1/leases/"+l.ID+"/report", `{"result":"blocked","target":"x.example"}`); !strings.Contains(body, `"exit":"192.0.2.2"`) {
		t.Error(body)
	}
	if _, body := b.call("POST", "/v1/leases/"+l.ID+"/report", `{"result":"ok"}`); body != `{"cooldown":null}`+"\n" {
		t.Error(body)
	}
	if _, body := b.call("GET", "/v1/cooldowns", nil); !strings.Contains(body, `"target":"x.example"`) {
		t.Error(body)
	}
	for range 2 {
		if response, _ := b.call("DELETE", "/v1/leases/"+l.ID, nil); response.StatusCode != http.StatusNoContent {
			t.Error(response.Status)
		}
	}
	if p := b.problem("POST", "/v1/leases/"+l.ID+"/renew", nil, http.StatusGone, api.CodeEnded); p.Reason != "released" {
		t.Errorf("reason %q", p.Reason)
	}
	first := b.acquire(nil)
	b.call("DELETE", "/v1/leases/"+first.ID, nil)
	_, one := b.call("POST", "/v1/leases", nil, api.HeaderKey, "k")
	_, two := b.call("POST", "/v1/leases", nil, api.HeaderKey, "k")
	if one[:60] != two[:60] {
		t.Errorf("%s and %s", one, two)
	}
	b.problem("POST", "/v1/leases", `{"client":"other"}`, http.StatusUnprocessableEntity, api.CodeKeyReused, api.HeaderKey, "k")
}

func TestListsHavePagesAndVersions(t *testing.T) {
	b := newBench(t, leasehttp.Config{}, proxy("a"), proxy("b"), proxy("c"))
	var seen []string
	for after := ""; ; {
		_, body := b.call("GET", "/v1/proxies?limit=2&after="+after, nil)
		var page api.Proxies
		if err := json.Unmarshal([]byte(body), &page); err != nil {
			t.Fatal(err)
		}
		for _, p := range page.Proxies {
			seen = append(seen, p.ID)
		}
		if after = page.Next; after == "" {
			break
		}
	}
	if strings.Join(seen, "") != "abc" {
		t.Errorf("pages gave %v", seen)
	}
	for _, path := range []string{"/v1/proxies", "/v1/leases", "/v1/cooldowns"} {
		response, _ := b.call("GET", path, nil)
		tag := response.Header.Get("ETag")
		if response, body := b.call("GET", path, nil, "If-None-Match", tag); response.StatusCode != http.StatusNotModified || body != "" {
			t.Errorf("%s unchanged: %s %q", path, response.Status, body)
		}
		l, err := b.service.Acquire(t.Context(), &lease.Request{Count: 1, TTL: 1e9})
		if err != nil {
			t.Fatal(err)
		}
		if response, _ := b.call("GET", path, nil, "If-None-Match", tag); response.StatusCode != http.StatusOK {
			t.Errorf("%s changed: %s", path, response.Status)
		}
		_ = b.service.Release(t.Context(), l[0].ID)
	}
}

func TestCooldownsHavePages(t *testing.T) {
	b := newBench(t, leasehttp.Config{}, proxy("a"))
	l := b.acquire(nil)
	for _, target := range []string{"c.example", "a.example", "b.example"} {
		b.call("POST", "/v1/leases/"+l.ID+"/report", `{"result":"blocked","target":"`+target+`"}`)
	}
	b.call("POST", "/v1/leases/"+l.ID+"/report", `{"result":"failed"}`)
	var seen []string
	for after := ""; ; {
		_, body := b.call("GET", "/v1/cooldowns?limit=1&after="+url.QueryEscape(after), nil)
		var page api.Cooldowns
		if err := json.Unmarshal([]byte(body), &page); err != nil || len(page.Cooldowns) != 1 {
			t.Fatal(body)
		}
		seen = append(seen, page.Cooldowns[0].Target)
		if after = page.Next; after == "" {
			break
		}
	}
	if got := strings.Join(seen, ","); got != ",a.example,b.example,c.example" {
		t.Errorf("pages gave %q", got)
	}
}

func TestARateSaysWhenThereIsRoomAgain(t *testing.T) {
	b := newBench(t, leasehttp.Config{Rate: 0.1}, proxy("a"))
	b.call("GET", "/v1/leases", nil)
	if p := b.problem("GET", "/v1/leases", nil, http.StatusTooManyRequests, api.CodeTooMany); p.RetryAfterSeconds < 5 || p.RetryAfterSeconds > 10 {
		t.Errorf("come back in %d s, want 10 at one request in ten seconds", p.RetryAfterSeconds)
	}
}

func TestTokensAllowWhatTheirScopesSay(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tokens.json")
	write := func(text string) {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(`{"reader":{"token":"reader-0123456789","scopes":["read"]},"crawler":{"token":"crawler-0123456789","scopes":["lease"]},
		"boss":{"sha256":"` + "c69c1e9d3e52cdd1f5bb8d2d2ef09be4a5e9cd3b2f4d9dd2c4cc9e5dd3a0e4ba" + `","scopes":["admin"]}}`)
	tokens, err := leasehttp.LoadTokens(path)
	if err != nil {
		t.Fatal(err)
	}
	b := newBench(t, leasehttp.Config{Tokens: tokens}, proxy("a"))
	response, _ := b.call("GET", "/v1/leases", nil)
	if response.StatusCode != http.StatusUnauthorized || response.Header.Get("WWW-Authenticate") == "" {
		t.Error(response.Status)
	}
	b.token = "wrong-0123456789ab"
	b.problem("GET", "/v1/leases", nil, http.StatusUnauthorized, api.CodeUnauthorized)
	b.token = "reader-0123456789"
	if response, _ := b.call("GET", "/v1/leases", nil); response.StatusCode != http.StatusOK {
		t.Error(response.Status)
	}
	b.problem("POST", "/v1/leases", nil, http.StatusForbidden, api.CodeForbidden)
	b.problem("GET", "/v1/proxies?format=txt", nil, http.StatusForbidden, api.CodeForbidden)
	b.token = "crawler-0123456789"
	b.acquire(nil)
	b.problem("GET", "/v1/leases", nil, http.StatusForbidden, api.CodeForbidden)
	b.problem("POST", "/v1/proxies/a/freeze", nil, http.StatusForbidden, api.CodeForbidden)
	for _, open := range []string{"/healthz", "/readyz"} {
		b.token = ""
		if response, _ := b.call("GET", open, nil); response.StatusCode != http.StatusOK {
			t.Errorf("%s: %s", open, response.Status)
		}
	}
	write("one-token-for-everything\n")
	if err := tokens.Reload(); err != nil {
		t.Fatal(err)
	}
	b.token = "one-token-for-everything"
	if _, body := b.call("POST", "/v1/proxies/a/freeze", `{"reason":"spam"}`); !strings.Contains(body, `"by":"default"`) {
		t.Error(body)
	}
	for _, bad := range []string{"short", "", `{"a":{"token":"short","scopes":["read"]}}`, `{"a":{"token":"0123456789abcdef","scopes":["root"]}}`,
		`{"a":{"token":"0123456789abcdef"}}`, `{"a":{"sha256":"zz","scopes":["read"]}}`} {
		write(bad)
		if err := tokens.Reload(); err == nil || strings.Contains(err.Error(), "0123456789abcdef") {
			t.Errorf("%s: %v", bad, err)
		}
	}
	if response, _ := b.call("GET", "/v1/leases", nil); response.StatusCode != http.StatusOK {
		t.Error("a broken file took the tokens away")
	}
}

func TestRateIsLimitedForEachCaller(t *testing.T) {
	b := newBench(t, leasehttp.Config{Rate: 2}, proxy("a"))
	for range 2 {
		if response, _ := b.call("GET", "/v1/leases", nil); response.StatusCode != http.StatusOK {
			t.Error(response.Status)
		}
	}
	if p := b.problem("GET", "/v1/leases", nil, http.StatusTooManyRequests, api.CodeTooMany); p.RetryAfterSeconds != 1 {
		t.Errorf("%+v", p)
	}
	if response, _ := b.call("GET", "/healthz", nil); response.StatusCode != http.StatusOK {
		t.Error(response.Status)
	}
}

func TestBrowsersOfOtherSitesAreRefused(t *testing.T) {
	b := newBench(t, leasehttp.Config{}, proxy("a"))
	response, _ := b.call("POST", "/v1/leases", nil, "Origin", "https://evil.example", "Sec-Fetch-Site", "cross-site")
	if response.StatusCode != http.StatusForbidden {
		t.Error(response.Status)
	}
}

func TestNamesPointedAtTheServiceAreRefusedWithoutTokens(t *testing.T) {
	b := newBench(t, leasehttp.Config{}, proxy("a"))
	for host, want := range map[string]int{"evil.example": 403, "evil.example:7700": 403, "localhost:7700": 200, "127.0.0.1": 200, "[::1]:7700": 200} {
		r, _ := http.NewRequestWithContext(t.Context(), "GET", b.url+"/v1/leases", nil)
		r.Host = host
		response, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
		if response.StatusCode != want {
			t.Errorf("Host %s: %s, want %d", host, response.Status, want)
		}
	}
}

func TestEventsTellWhatChanges(t *testing.T) {
	b := newBench(t, leasehttp.Config{}, proxy("a"))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	r, _ := http.NewRequestWithContext(ctx, "GET", b.url+"/v1/events", nil)
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	lines := bufio.NewScanner(response.Body)
	next := func(want string) string {
		t.Helper()
		for lines.Scan() {
			if kind, ok := strings.CutPrefix(lines.Text(), "event: "); ok {
				lines.Scan()
				if kind != want {
					t.Fatalf("event %s, want %s", kind, want)
				}
				return lines.Text()
			}
		}
		t.Fatalf("the stream ended before %s: %v", want, lines.Err())
		return ""
	}
	next("hello")
	l := b.acquire(`{"target":"x.example"}`)
	if data := next("lease.granted"); !strings.Contains(data, l.ID) {
		t.Error(data)
	}
	b.call("POST", "/v1/leases/"+l.ID+"/report", `{"result":"blocked"}`)
	next("cooldown.started")
	b.call("POST", "/v1/proxies/a/freeze", nil)
	next("proxy.changed")
	b.call("DELETE", "/v1/leases/"+l.ID, nil)
	if data := next("lease.ended"); !strings.Contains(data, `"reason":"released"`) {
		t.Error(data)
	}
	b.service.SetProxies(nil)
	next("proxy.removed")
	b.service.SetPlaces(places())
	if data := next("target.added"); !strings.Contains(data, `"target":{"id":"n1/hv-a"`) {
		t.Error(data)
	}
}

func FuzzBodies(f *testing.F) {
	for _, seed := range []string{`{"selector":"a=1","ttl":"5s","count":2,"partial":true}`, `{"result":"ok"}`, `{"ttl":1e300}`, `{"reason":"x"}`, `{`, `null`, `[]`} {
		f.Add(seed)
	}
	s := lease.NewService(lease.Config{})
	s.SetProxies([]*lease.Proxy{proxy("a")})
	s.Lead(nil, nil)
	handler := leasehttp.New(leasehttp.Config{Service: s})
	f.Fuzz(func(t *testing.T, body string) {
		for _, path := range []string{"/v1/leases", "/v1/leases/x/renew", "/v1/leases/x/report", "/v1/proxies/a/freeze"} {
			ctx, cancel := context.WithCancel(t.Context())
			cancel() // nothing waits
			w := httptest.NewRecorder()
			handler.ServeHTTP(w, httptest.NewRequestWithContext(ctx, "POST", path, strings.NewReader(body)))
			if w.Code == http.StatusInternalServerError {
				t.Fatalf("%s %q: %s", path, body, w.Body)
			}
		}
	})
}
