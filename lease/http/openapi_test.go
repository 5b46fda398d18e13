package http_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/egress-proxies/egress/lease/api"
	leasehttp "github.com/egress-proxies/egress/lease/http"
)

// document gets the OpenAPI document from a service.
func document(t *testing.T, b *bench) map[string]any {
	t.Helper()
	_, body := b.call("GET", "/v1/openapi.json", nil)
	var doc map[string]any
	if err := json.Unmarshal([]byte(body), &doc); err != nil {
		t.Fatal(err)
	}
	return doc
}

// dig follows keys into JSON.
func dig(v any, keys ...string) any {
	for _, key := range keys {
		m, _ := v.(map[string]any)
		v = m[key]
	}
	return v
}

// holds checks a value against a schema of the document.
func holds(doc map[string]any, schema, value any, at string) error {
	if name, ok := dig(schema, "$ref").(string); ok {
		return holds(doc, dig(doc, strings.Split(strings.TrimPrefix(name, "#/"), "/")...), value, at)
	}
	if options, ok := dig(schema, "oneOf").([]any); ok {
		var last error
		for _, option := range options {
			if last = holds(doc, option, value, at); last == nil {
				return nil
			}
		}
		return last
	}
	kind := fmt.Sprint(dig(schema, "type"))
	switch v := value.(type) {
	case nil:
		if kind != "null" {
			return fmt.Errorf("%s is null, want %s", at, kind)
		}
	case map[string]any:
		properties, _ := dig(schema, "properties").(map[string]any)
		required, _ := dig(schema, "required").([]any)
		for _, name := range required {
			if _, ok := v[name.(string)]; !ok {
				return fmt.Errorf("%s lacks %s", at, name)
			}
		}
		for name, part := range v {
			s, ok := properties[name]
			if !ok {
				if s, ok = dig(schema, "additionalProperties").(map[string]any); !ok {
					return fmt.Errorf("%s.%s is not in the document", at, name)
				}
			}
			if err := holds(doc, s, part, at+"."+name); err != nil {
				return err
			}
		}
	case []any:
		for i, part := range v {
			if err := holds(doc, dig(schema, "items"), part, fmt.Sprintf("%s[%d]", at, i)); err != nil {
				return err
			}
		}
	case string:
		if kind != "string" {
			return fmt.Errorf("%s is a string, want %s", at, kind)
		}
	case float64:
		if kind != "number" && kind != "integer" {
			return fmt.Errorf("%s is a number, want %s", at, kind)
		}
	}
	return nil
}

// Every answer of every path must be what the document says.
func TestAnswersAreAsTheDocumentSays(t *testing.T) {
	p := proxy("a")
	p.Auth, p.Tags, p.Reason = "crawl", []string{"egress"}, "proxy works"
	b := newBench(t, leasehttp.Config{Credentials: func(string) (string, string, bool) { return "u", "p", true }}, p, proxy("b"))
	doc := document(t, b)
	checked := map[string]bool{}
	check := func(method, pattern, path string, in any, headers ...string) {
		t.Helper()
		response, body := b.call(method, path, in, headers...)
		answer := dig(doc, "paths", pattern, strings.ToLower(method), "responses", fmt.Sprint(response.StatusCode))
		if answer == nil {
			t.Errorf("%s %s: %s is not in the document (%s)", method, path, response.Status, body)
			return
		}
		checked[method+" "+pattern] = true
		mediaType, _, _ := strings.Cut(response.Header.Get("Content-Type"), ";")
		content := dig(answer, "content")
		if body == "" && content == nil {
			return
		}
		schema := dig(content, mediaType, "schema")
		var value any
		if err := json.Unmarshal([]byte(body), &value); err != nil || schema == nil {
			t.Errorf("%s %s: %s with %s: %s", method, path, response.Status, mediaType, body)
			return
		}
		if err := holds(doc, schema, value, "answer"); err != nil {
			t.Errorf("%s %s: %v: %s", method, path, err, body)
		}
	}
	l := b.acquire(`{"selector":"id=a","target":"x.example","session":"s","client":"me"}`)
	check("POST", api.PathLeases, "/v1/leases", `{}`)
	check("POST", api.PathLeases, "/v1/leases", `{}`)               // refused
	check("POST", api.PathLeases, "/v1/leases", `{"selector":"="}`) // wrong
	check("GET", api.PathLeases, "/v1/leases?limit=1", nil)
	check("GET", api.PathLease, "/v1/leases/"+l.ID, nil)
	check("GET", api.PathLease, "/v1/leases/none", nil)
	check("POST", api.PathRenew, "/v1/leases/"+l.ID+"/renew", nil)
	check("POST", api.PathReport, "/v1/leases/"+l.ID+"/report", `{"result":"blocked"}`)
	check("POST", api.PathReport, "/v1/leases/"+l.ID+"/report", `{"result":"ok"}`)
	check("GET", api.PathCooldowns, "/v1/cooldowns", nil)
	check("POST", api.PathFreeze, "/v1/proxies/a/freeze", `{"reason":"x"}`)
	check("POST", api.PathDrain, "/v1/proxies/a/drain", nil)
	check("GET", api.PathTargets, "/v1/targets", nil) // not known yet
	b.service.SetPlaces(places())
	check("GET", api.PathTargets, "/v1/targets", nil)
	check("GET", api.PathProxies, "/v1/proxies", nil)
	check("POST", api.PathUnfreeze, "/v1/proxies/none/unfreeze", nil)
	check("DELETE", api.PathLease, "/v1/leases/"+l.ID, nil)
	check("POST", api.PathRenew, "/v1/leases/"+l.ID+"/renew", nil) // ended
	checked["GET "+api.PathEvents] = true                          // a stream; see TestEventsTellWhatChanges
	paths, _ := doc["paths"].(map[string]any)
	for path, methods := range paths {
		for method := range methods.(map[string]any) {
			if !checked[strings.ToUpper(method)+" "+path] {
				t.Errorf("%s %s is in the document and was not checked", method, path)
			}
		}
	}
	if doc["openapi"] != "3.1.0" || len(paths) < 9 {
		t.Errorf("version %v, %d paths", doc["openapi"], len(paths))
	}
}

// The reference must have every kind of error and every path.
func TestReferenceHasEveryErrorAndPath(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "lease-api.md"))
	if err != nil {
		t.Fatal(err)
	}
	doc := document(t, newBench(t, leasehttp.Config{}))
	want := []string{string(api.CodeNotFound), string(api.CodeMethod)}
	for path, methods := range doc["paths"].(map[string]any) {
		want = append(want, path)
		for _, op := range methods.(map[string]any) {
			for _, response := range dig(op, "responses").(map[string]any) {
				for part := range strings.SplitSeq(dig(response, "description").(string), "; ") {
					if code, _, ok := strings.Cut(part, ": "); ok {
						want = append(want, code)
					}
				}
			}
		}
	}
	for _, word := range want {
		if !strings.Contains(string(text), "`"+word+"`") && !strings.Contains(string(text), " "+word+"`") {
			t.Errorf("docs/lease-api.md has no `%s`", word)
		}
	}
}
