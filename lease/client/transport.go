package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"

	"github.com/egress-proxies/egress/lease/api"
)

// Verdict is what a rule says about an answer of a site.
type Verdict string

// The verdicts.
const (
	// Good: the answer is what was wanted.
	Good Verdict = "ok"
	// Blocked: the site refused the exit address. Another proxy may do.
	Blocked Verdict = "blocked"
)

// Transport is an http.RoundTripper that leases a proxy for each request, reports
// what became of it, and tries again on another proxy.
type Transport struct {
	// Client leases. Required.
	Client *Client
	// Ask says what to lease; Target is set for each request.
	Ask api.Acquire
	// Judge is the rule that tells a block: by the status, a header, a captcha.
	// It must not read the body to its end. Nil takes 403 and 429 for a block.
	Judge func(*http.Response) Verdict
	// Attempts bounds how many proxies one request tries; 3 when 0. A request
	// whose body can't be had again, without GetBody, is tried once.
	Attempts int
	// Base makes the transport of one proxy; nil clones http.DefaultTransport.
	// Its Proxy is set.
	Base func() *http.Transport
}

var _ http.RoundTripper = (*Transport)(nil)

// RoundTrip leases, sends and reports. The lease is released when the body of
// the answer is closed. When every attempt was blocked, the last answer is
// given.
func (t *Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	attempts := max(t.Attempts, 1)
	if t.Attempts == 0 {
		attempts = 3
	}
	if r.Body != nil && r.Body != http.NoBody && r.GetBody == nil {
		attempts = 1
	}
	var last error
	for i := 1; i <= attempts; i++ {
		again := r
		if i > 1 && r.GetBody != nil {
			body, err := r.GetBody()
			if err != nil {
				return nil, errors.Join(last, err)
			}
			again = r.Clone(r.Context())
			again.Body = body
		}
		response, retry, err := t.once(again, i == attempts)
		if !retry {
			return response, err
		}
		last = err
	}
	return nil, fmt.Errorf("%d proxies failed: %w", attempts, last)
}

// once makes one attempt. retry says that another proxy should be tried.
func (t *Transport) once(r *http.Request, final bool) (response *http.Response, retry bool, err error) {
	ask := t.Ask
	ask.Target = r.URL.String()
	held, err := t.Client.Hold(r.Context(), ask, nil)
	if err != nil {
		return nil, false, fmt.Errorf("lease a proxy: %w", err)
	}
	proxy, err := url.Parse(held.Lease().URL)
	if err != nil {
		return nil, false, errors.Join(err, t.done(r, held, ""))
	}
	base := t.base()
	base.Proxy = http.ProxyURL(proxy)
	response, err = base.RoundTrip(r)
	if err != nil {
		base.CloseIdleConnections()
		if r.Context().Err() != nil {
			return nil, false, errors.Join(err, t.done(r, held, ""))
		}
		_ = t.done(r, held, "failed")
		return nil, true, err
	}
	judge := t.Judge
	if judge == nil {
		judge = byStatus
	}
	verdict := judge(response)
	if verdict == Blocked && !final {
		_ = response.Body.Close()
		base.CloseIdleConnections()
		_ = t.done(r, held, string(Blocked))
		return nil, true, fmt.Errorf("%s was blocked through %s: %s", r.URL.Host, held.Lease().Proxy, response.Status)
	}
	response.Body = &leasedBody{ReadCloser: response.Body, end: func() {
		base.CloseIdleConnections()
		_ = t.done(r, held, string(verdict))
	}}
	return response, false, nil
}

func (t *Transport) base() *http.Transport {
	if t.Base != nil {
		return t.Base()
	}
	return http.DefaultTransport.(*http.Transport).Clone()
}

// done reports and releases, also when the request's context has ended.
func (t *Transport) done(r *http.Request, held *Held, result string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), giveBack)
	defer cancel()
	if result != "" {
		_, _ = held.Report(ctx, result, "") // the lease may have ended
	}
	return held.Release(ctx)
}

// byStatus is the rule without a rule.
func byStatus(response *http.Response) Verdict {
	if response.StatusCode == http.StatusForbidden || response.StatusCode == http.StatusTooManyRequests {
		return Blocked
	}
	return Good
}

// leasedBody gives the lease back when it is closed.
type leasedBody struct {
	io.ReadCloser
	end func()
}

// Close closes the body and gives the lease back, once.
func (b *leasedBody) Close() error {
	err := b.ReadCloser.Close()
	if b.end != nil {
		b.end()
		b.end = nil
	}
	return err
}
