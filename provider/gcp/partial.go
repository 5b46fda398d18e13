package gcp

import (
	"net/http"
	"strings"
)

// partialSuccess asks Google to answer aggregated lists for the zones that
// work, and to name the others. The SDK documents the parameter and its request
// types lack it (cloud.google.com/go/compute v1.75), so it is added here.
type partialSuccess struct{ next http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (p *partialSuccess) RoundTrip(request *http.Request) (*http.Response, error) {
	if request.Method != http.MethodGet || !strings.Contains(request.URL.Path, "/aggregated/") {
		return p.next.RoundTrip(request)
	}
	changed := request.Clone(request.Context()) // a transport must not change the caller's
	query := changed.URL.Query()
	query.Set("returnPartialSuccess", "true")
	changed.URL.RawQuery = query.Encode()
	return p.next.RoundTrip(changed)
}
