// Package probe says whether an egress proxy works, by fetching a URL through
// it as its clients do.
//
// A Prober makes single probes; a Tracker turns their results into transitions
// by thresholds; Run does both on a schedule. docs/probe.md explains the stages
// and the messages.
package probe

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"net/http"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	"github.com/egress-proxies/egress/driver/probe/reload"
)

// Limits of what a proxy or a target can make a probe hold in memory.
const (
	// maxHeader of an answer, also of the one to CONNECT. Real ones are under
	// 8 KiB, which is where most servers stop as well.
	maxHeader = 64 << 10
	// maxBody is how much of a page is read: the beginning proves the proxy.
	maxBody = 64 << 10
	// maxExitBody is ample for an address in JSON.
	maxExitBody = 4 << 10
)

// Prober probes one proxy. Its methods are safe for concurrent use.
type Prober struct {
	config Config
	urls   []*url.URL
	exit   *url.URL
	roots  *reload.File[*x509.CertPool]
	// proxy is the address with the credentials.
	proxy atomic.Pointer[url.URL]
	dial  func(ctx context.Context, network, address string) (net.Conn, error)

	// mu guards transport and trusted, the roots that it was made with.
	mu        sync.Mutex
	transport *http.Transport
	trusted   *x509.CertPool
}

// New validates both and does nothing else: no file is read and no connection
// is made before the first probe.
func New(config Config, proxy Proxy) (*Prober, error) {
	if err := errors.Join(config.Validate(), proxy.validate()); err != nil {
		return nil, err
	}
	p := &Prober{config: config.WithDefaults(), dial: new(net.Dialer).DialContext}
	p.proxy.Store(proxyURL(proxy))
	for _, raw := range config.URLs {
		target, err := parseURL(raw)
		if err != nil {
			return nil, err
		}
		p.urls = append(p.urls, target)
	}
	if config.ExitIPURL != "" {
		exit, err := parseURL(config.ExitIPURL)
		if err != nil {
			return nil, err
		}
		p.exit = exit
	}
	if len(p.urls) == 0 {
		p.urls = []*url.URL{p.exit}
	}
	if config.CAFile != "" {
		p.roots = reload.Roots(config.CAFile)
	}
	return p, nil
}

// SetCredentials replaces what the following probes authenticate with. Empty
// strings are no credentials.
func (p *Prober) SetCredentials(username, password string) error {
	if err := checkCredentials(username); err != nil {
		return err
	}
	changed := *p.proxy.Load()
	changed.User = userinfo(username, password)
	p.proxy.Store(&changed)
	return nil
}

func proxyURL(proxy Proxy) *url.URL {
	return &url.URL{Scheme: "http", Host: proxy.address(), User: userinfo(proxy.Username, proxy.Password)}
}

func userinfo(username, password string) *url.Userinfo {
	if username == "" && password == "" {
		return nil
	}
	return url.UserPassword(username, password)
}

// Once makes one probe over a new connection. It returns within the timeout,
// and at once when ctx ends: the verdict then says nothing about the proxy, so
// look at ctx.Err() first.
func (p *Prober) Once(ctx context.Context) Verdict {
	ctx, cancel := context.WithTimeout(ctx, p.config.Timeout)
	defer cancel()
	var first *failure
	for i, target := range p.urls {
		result, failed := p.try(ctx, target, len(p.urls)-i)
		if failed == nil {
			return p.passed(ctx, target, result)
		}
		if first == nil {
			first = failed
		}
		if ctx.Err() != nil {
			break
		}
	}
	return Verdict{Stage: first.stage, Message: first.Error()}
}

// try fetches one URL within its share of the time that is left, so that a
// target which hangs leaves some for those after it.
func (p *Prober) try(ctx context.Context, target *url.URL, left int) (answer, *failure) {
	if deadline, ok := ctx.Deadline(); ok && left > 1 {
		share := time.Until(deadline) / time.Duration(left)
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, share)
		defer cancel()
	}
	return p.fetch(ctx, target)
}

// passed completes the verdict of a proxy that works with its exit address.
func (p *Prober) passed(ctx context.Context, target *url.URL, result answer) Verdict {
	verdict := Verdict{OK: true, Message: Works, Latency: result.latency}
	if p.exit == nil {
		return verdict
	}
	if *target != *p.exit {
		var failed *failure
		if result, failed = p.fetch(ctx, p.exit); failed != nil {
			verdict.ExitIPProblem = failed.Error()
			return verdict
		}
	}
	exitIP, err := parseExitIP(result.body)
	if err != nil {
		verdict.ExitIPProblem = describe(p.exit) + ": " + err.Error()
		return verdict
	}
	verdict.ExitIP = exitIP
	return verdict
}

// roundTripper is the transport for the roots as they are now.
func (p *Prober) roundTripper() (*http.Transport, error) {
	var trusted *x509.CertPool
	if p.roots != nil {
		pool, ok, err := p.roots.Get()
		if !ok {
			return nil, err
		}
		trusted = pool
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.transport == nil || p.trusted != trusted {
		p.transport, p.trusted = p.newTransport(trusted), trusted
	}
	return p.transport, nil
}

// newTransport keeps nothing alive: each probe proves that a new connection can
// be made. It speaks HTTP/1.1, which every target understands.
func (p *Prober) newTransport(trusted *x509.CertPool) *http.Transport {
	return &http.Transport{
		Proxy:                  func(*http.Request) (*url.URL, error) { return p.proxy.Load(), nil },
		DialContext:            func(ctx context.Context, n, a string) (net.Conn, error) { return p.dial(ctx, n, a) },
		TLSClientConfig:        &tls.Config{RootCAs: trusted, MinVersion: tls.VersionTLS12},
		ProxyConnectHeader:     http.Header{"User-Agent": {userAgent}},
		OnProxyConnectResponse: refusedTunnel,
		DisableKeepAlives:      true,
		DisableCompression:     true,
		MaxResponseHeaderBytes: maxHeader,
		ReadBufferSize:         4 << 10,
		WriteBufferSize:        1 << 10,
	}
}
