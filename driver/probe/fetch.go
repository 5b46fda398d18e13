package probe

import (
	"context"
	"io"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"sync/atomic"
	"time"
)

// answer is what a successful fetch gave.
type answer struct {
	// body is its beginning, up to maxBody.
	body    []byte
	latency time.Duration
}

// userAgent names the requester to the target's operator, and is the only thing
// that tells a probe from a client. There are no trace headers: a target that
// could tell probes apart could treat them apart.
const userAgent = "egress-probe"

// fetch gets the target through the proxy. Redirects are not followed: where
// they lead would have to be proven as well, and a proxy that sends its clients
// to a page of its own must not pass.
func (p *Prober) fetch(ctx context.Context, target *url.URL) (answer, *failure) {
	progress := &progress{target: target, authenticated: p.proxy.Load().User != nil}
	transport, err := p.roundTripper()
	if err != nil {
		return answer{}, &failure{StageTLS, "ca_file: " + err.Error()}
	}
	ctx = httptrace.WithClientTrace(ctx, progress.trace())
	request := (&http.Request{
		Method: http.MethodGet,
		URL:    target,
		Host:   target.Host,
		Header: http.Header{"User-Agent": {userAgent}, "Accept": {"*/*"}},
	}).WithContext(ctx)
	if user := target.User; user != nil {
		password, _ := user.Password()
		request.SetBasicAuth(user.Username(), password)
	}
	started := time.Now()
	response, err := transport.RoundTrip(request)
	if err != nil {
		return answer{}, progress.explain(ctx, err)
	}
	defer response.Body.Close()
	if failed := progress.checkStatus(response.StatusCode); failed != nil {
		return answer{}, failed
	}
	body, err := io.ReadAll(io.LimitReader(response.Body, maxBody))
	if err != nil {
		return answer{}, progress.explain(ctx, err)
	}
	return answer{body: body, latency: time.Since(started)}, nil
}

// step is how far a fetch has come. It only grows: a second address that is
// dialled beside the first does not take it back.
type step int32

const (
	resolving step = iota
	dialling
	connecting
	shakingHands
	requesting
)

// progress follows one fetch through the hooks of net/http, since its errors
// don't say reliably which step they belong to.
type progress struct {
	target        *url.URL
	authenticated bool
	reached       atomic.Int32
}

func (p *progress) advance(to step) {
	for {
		at := p.reached.Load()
		if at >= int32(to) || p.reached.CompareAndSwap(at, int32(to)) {
			return
		}
	}
}

func (p *progress) step() step { return step(p.reached.Load()) }

func (p *progress) trace() *httptrace.ClientTrace {
	connected := connecting
	if p.target.Scheme == "http" {
		connected = requesting
	}
	return &httptrace.ClientTrace{
		ConnectStart: func(string, string) { p.advance(dialling) },
		ConnectDone: func(_, _ string, err error) {
			if err == nil {
				p.advance(connected)
			}
		},
		TLSHandshakeStart: func() { p.advance(shakingHands) },
		GotConn:           func(httptrace.GotConnInfo) { p.advance(requesting) },
	}
}
