package gcp

import (
	"context"
	"net/http"
	"strconv"
	"strings"
	"sync"

	"github.com/googleapis/gax-go/v2/callctx"
)

// mended is the transport next to the SDK. It mends two things of its lists
// (cloud.google.com/go/compute v1.75): their requests do not carry the caller's
// context, so that a list could not be cancelled, and they lack the parameter
// returnPartialSuccess, with which Google answers for the zones that work and
// names the others.
type mended struct {
	next http.RoundTripper
	mu   sync.Mutex // guards what follows
	last uint64
	open map[string]context.Context // calls under way
}

// callHeader carries the number of a call from its context, out of which the
// SDK takes headers, to the transport. It is never sent.
const callHeader = "X-Egress-Call"

// begin gives a context by which the transport finds ctx again until end.
func (m *mended) begin(ctx context.Context) (numbered context.Context, end func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.last++
	number := strconv.FormatUint(m.last, 10)
	if m.open == nil {
		m.open = make(map[string]context.Context)
	}
	m.open[number] = ctx
	return callctx.SetHeaders(ctx, callHeader, number), func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		delete(m.open, number)
	}
}

// RoundTrip implements http.RoundTripper.
func (m *mended) RoundTrip(request *http.Request) (*http.Response, error) {
	ctx := request.Context()
	m.mu.Lock()
	if call, ok := m.open[request.Header.Get(callHeader)]; ok {
		ctx = call
	}
	m.mu.Unlock()
	changed := request.Clone(ctx) // a transport must not change the caller's
	changed.Header.Del(callHeader)
	if request.Method == http.MethodGet && strings.Contains(request.URL.Path, "/aggregated/") {
		query := changed.URL.Query()
		query.Set("returnPartialSuccess", "true")
		changed.URL.RawQuery = query.Encode()
	}
	return m.next.RoundTrip(changed)
}
