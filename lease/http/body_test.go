package http_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/egress-proxies/egress/lease/api"
	leasehttp "github.com/egress-proxies/egress/lease/http"
)

// What is wrong with a body is told in the terms of JSON: who writes it need not
// know Go.
func TestWrongTypesAreToldInJSONsTerms(t *testing.T) {
	b := newBench(t, leasehttp.Config{}, proxy("eg-a"))
	for body, want := range map[string]string{
		`[]`:              "a JSON object",
		`{"count":"x"}`:   "a whole number",
		`{"selector":[]}`: "a string",
	} {
		_, text := b.call(http.MethodPost, api.PathLeases, body)
		if !strings.Contains(text, want) || strings.Contains(text, "api.") {
			t.Errorf("%s: %s, want it to say %q", body, text, want)
		}
	}
}
