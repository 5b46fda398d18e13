package image

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/hashicorp/go-hclog"
)

// Options are the settings of a Cache. The zero value of each has a meaning.
type Options struct {
	// Owner is who fetches: anything that is the same before and after a
	// restart and differs between Nomad nodes. Its partial files of an earlier
	// life are removed on sight, so that no two processes may be one owner at
	// the same time. Empty is one who does not come back.
	Owner string
	// Logger may be nil.
	Logger hclog.Logger
	// Client fetches; nil is one with the machine's proxy settings that never
	// follows a redirect from https to http.
	Client *http.Client
	// StallTimeout is how long a server may send nothing; 0 is 30 s.
	StallTimeout time.Duration
	// TargetTimeout is how long a host may take nothing while others wait for
	// it; 0 is 2 min, since a busy disk can pause for long.
	TargetTimeout time.Duration
	// ReportEvery is the time between two progress messages; 0 is 2 s.
	ReportEvery time.Duration
	// Backoff is the pause before the n-th retry, n from 1; nil is 0.5 s, 1 s,
	// 2 s and so on up to 15 s.
	Backoff func(n int) time.Duration
}

func (o Options) withDefaults() Options {
	if o.Logger == nil {
		o.Logger = hclog.NewNullLogger()
	}
	if o.Client == nil {
		o.Client = defaultClient()
	}
	if o.StallTimeout == 0 {
		o.StallTimeout = 30 * time.Second
	}
	if o.TargetTimeout == 0 {
		o.TargetTimeout = 2 * time.Minute
	}
	if o.ReportEvery == 0 {
		o.ReportEvery = 2 * time.Second
	}
	if o.Backoff == nil {
		o.Backoff = func(n int) time.Duration { return min(500*time.Millisecond<<min(n-1, 10), 15*time.Second) }
	}
	return o
}

// pause waits before the n-th retry, or until ctx ends.
func (o Options) pause(ctx context.Context, n int) error {
	timer := time.NewTimer(o.Backoff(n))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// errDowngrade refuses to give up the protection that the URL asked for.
var errDowngrade = errors.New("redirected from https to http: want a URL that stays on https")

func defaultClient() *http.Client {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.DisableCompression = true
	return &http.Client{
		Transport: transport,
		CheckRedirect: func(request *http.Request, via []*http.Request) error {
			if len(via) >= 10 {
				return errors.New("stopped after 10 redirects")
			}
			if via[0].URL.Scheme == "https" && request.URL.Scheme != "https" {
				return errDowngrade
			}
			return nil
		},
	}
}
