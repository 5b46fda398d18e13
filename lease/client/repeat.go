package client

import (
	"context"
	"crypto/rand"
	"errors"
	"net/url"
	"time"

	"github.com/egress-proxies/egress/lease/api"
)

func newKey() string { return rand.Text() }

// attempts bounds how often a request is repeated: with the pauses below it
// outlasts a change of the leader.
const attempts = 6

// repeat calls f again as long as its error is one that passes by itself: a
// broken connection, no leader, an unknown outcome. f must be safe to repeat.
func (c *Client) repeat(ctx context.Context, f func() error) error {
	pause := 100 * time.Millisecond
	for i := 1; ; i++ {
		err := f()
		if err == nil || i == attempts || !passes(err) || ctx.Err() != nil {
			return err
		}
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return err
		case <-timer.C:
		}
		pause *= 2
	}
}

// passes says whether the same request may work in a moment.
func passes(err error) bool {
	var p *api.Problem
	if errors.As(err, &p) {
		switch p.Code() {
		case api.CodeNoLeader, api.CodeUncertain:
			return true
		}
		return p.Code() == "" && (p.Status == 502 || p.Status == 503 || p.Status == 504)
	}
	if errors.Is(err, errNoReplica) {
		return true
	}
	var broken *url.Error
	return errors.As(err, &broken) && !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded)
}

// giveBack bounds the effort to release a lease; what can't be released expires.
const giveBack = 5 * time.Second
