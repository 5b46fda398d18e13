package http

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/egress-proxies/egress/lease"
	"github.com/egress-proxies/egress/lease/api"
)

const (
	// headerForwarded marks a request that a replica passed on. It is never
	// passed on again: two replicas that take each other for the leader would
	// otherwise play ping-pong.
	headerForwarded = "X-Egress-Forwarded"
	// headerNotLeader marks the answer of a replica that did nothing.
	headerNotLeader = "X-Egress-Not-Leader"
)

// Forwarder passes requests on to the leader, and waits for one as long as there
// is none.
type Forwarder struct {
	// Leader is the leader's URL, empty for none, and a channel that is closed
	// when it changes. Required.
	Leader func() (address string, changed <-chan struct{})
	// Self is the URL of this process; it is never forwarded to.
	Self string
	// Local answers when this process has become the leader. Required.
	Local http.Handler
	// Leading says whether it has. Required.
	Leading func() bool
	// Absent is how long there has been no leader; 0 while there is one, and more
	// than Patience when none was seen yet. Nil is that every absence counts.
	Absent func() time.Duration
	// Client sends; it must not follow redirects and needs no timeout.
	Client *http.Client
	// Patience is how long a request waits for a leader: longer than a change
	// of the leader takes.
	Patience time.Duration
}

// forwardPause is the pause before another attempt at a leader that refused.
const forwardPause = 50 * time.Millisecond

// ServeHTTP answers one request.
func (f *Forwarder) serve(s *Server, w http.ResponseWriter, r *http.Request) {
	if r.Header.Get(headerForwarded) != "" {
		s.fail(w, r, lease.ErrNoLeader)
		return
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		s.fail(w, r, errTooLarge)
		return
	}
	if r.Method == http.MethodPost && r.URL.Path == api.PathLeases && r.Header.Get(api.HeaderKey) == "" {
		// The attempts below must not grant more than one lease.
		r.Header.Set(api.HeaderKey, "forwarded-"+newRequestID()+newRequestID())
	}
	deadline := time.Now().Add(f.Patience)
	last := error(lease.ErrNoLeader)
	for {
		address, changed := f.Leader()
		switch {
		case f.Leading():
			r.Body = io.NopCloser(bytes.NewReader(body))
			f.Local.ServeHTTP(w, r)
			return
		case address != "" && address != f.Self:
			answered, err := f.try(w, r, address, body, changed)
			if answered {
				return
			}
			if err != nil {
				last = fmt.Errorf("%w: the leader %s: %w", lease.ErrNoLeader, address, err)
			}
		}
		if r.Context().Err() != nil {
			s.fail(w, r, context.Cause(r.Context()))
			return
		}
		if time.Now().After(deadline) {
			s.fail(w, r, last)
			return
		}
		wait(r.Context(), forwardPause, changed)
	}
}

// try sends the request to the leader once. It answers unless the leader was not
// reached, is none, or was replaced meanwhile.
func (f *Forwarder) try(w http.ResponseWriter, r *http.Request, address string, body []byte, changed <-chan struct{}) (answered bool, err error) {
	ctx, cancel := context.WithCancelCause(r.Context())
	defer cancel(nil)
	stop := make(chan struct{})
	defer close(stop)
	go func() {
		select {
		case <-changed:
			cancel(errReplaced)
		case <-stop:
		}
	}()
	request, err := http.NewRequestWithContext(ctx, r.Method, address+r.URL.RequestURI(), bytes.NewReader(body))
	if err != nil {
		return false, err
	}
	request.Header = r.Header.Clone()
	request.Header.Set(headerForwarded, "1")
	request.Header.Del("Connection")
	response, err := f.Client.Do(request)
	if err != nil {
		return false, err
	}
	defer response.Body.Close()
	if response.Header.Get(headerNotLeader) != "" {
		return false, lease.ErrNoLeader
	}
	for key, values := range response.Header {
		if key != "Connection" && key != "Content-Length" && key != "Transfer-Encoding" {
			w.Header()[key] = values
		}
	}
	w.WriteHeader(response.StatusCode)
	flush := http.NewResponseController(w)
	buffer := make([]byte, 32<<10)
	for {
		n, err := response.Body.Read(buffer)
		if n > 0 {
			if _, err := w.Write(buffer[:n]); err != nil {
				return true, nil // the client is gone
			}
			_ = flush.Flush()
		}
		if errors.Is(err, io.EOF) {
			return true, nil
		}
		if err != nil {
			panic(http.ErrAbortHandler) // the answer has begun; only a cut tells
		}
	}
}

var errReplaced = errors.New("the leader was replaced")

// wait returns after d, or when the leader changes or the client goes.
func wait(ctx context.Context, d time.Duration, changed <-chan struct{}) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-changed:
	case <-timer.C:
	}
}
