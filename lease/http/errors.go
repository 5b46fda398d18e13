package http

import (
	"context"
	"errors"
	"math"
	"net/http"
	"strconv"
	"time"

	"github.com/egress-proxies/egress/lease"
	"github.com/egress-proxies/egress/lease/api"
)

// The errors that only the HTTP side knows.
var (
	errNotFound     = errors.New("there is nothing at this path")
	errMethod       = errors.New("this path has no such method; see Allow")
	errTooLarge     = errors.New("the body is larger than 64 KiB")
	errUnauthorized = errors.New("want a valid token: Authorization: Bearer …")
	errForbidden    = errors.New("the token lacks the scope")
	// errForbiddenHost: see Server.local.
	errForbiddenHost = errors.New("the request is not for this service")
	errTooMany       = errors.New("too many requests")
	errPanic         = errors.New("internal error; the log has more")
)

// kind is what all errors of one sentinel have in common.
type kind struct {
	sentinel error
	status   int
	code     api.Code
	title    string
	// retry is the Retry-After when the error itself has none; 0 is that time
	// does not cure it.
	retry time.Duration
}

// kinds is the one map from errors to statuses. The first that fits counts.
var kinds = []kind{
	{lease.ErrInvalid, http.StatusBadRequest, api.CodeInvalid, "The request can't be understood", 0},
	{lease.ErrNoCapacity, http.StatusConflict, api.CodeNoCapacity, "No proxy is free", time.Second},
	{lease.ErrNoMatch, http.StatusConflict, api.CodeNoMatch, "No proxy matches", 30 * time.Second},
	{lease.ErrUnknownLease, http.StatusNotFound, api.CodeUnknownLease, "There is no such lease", 0},
	{lease.ErrUnknownProxy, http.StatusNotFound, api.CodeUnknownProxy, "There is no such proxy", 0},
	{lease.ErrEnded, http.StatusGone, api.CodeEnded, "The lease has ended", 0},
	{lease.ErrSessionEnded, http.StatusGone, api.CodeSessionEnded, "The session has ended", 0},
	{lease.ErrKeyReused, http.StatusUnprocessableEntity, api.CodeKeyReused, "The idempotency key was used for another request", 0},
	{lease.ErrQueueFull, http.StatusServiceUnavailable, api.CodeQueueFull, "Too many acquires are waiting", 5 * time.Second},
	{lease.ErrNotReady, http.StatusServiceUnavailable, api.CodeNotReady, "The pool is not known yet", 2 * time.Second},
	{lease.ErrUncertain, http.StatusServiceUnavailable, api.CodeUncertain, "The outcome is unknown", time.Second},
	{lease.ErrNoLeader, http.StatusServiceUnavailable, api.CodeNoLeader, "No leader", time.Second},
	{errUnauthorized, http.StatusUnauthorized, api.CodeUnauthorized, "A token is needed", 0},
	{errForbidden, http.StatusForbidden, api.CodeForbidden, "Not allowed", 0},
	{errForbiddenHost, http.StatusForbidden, api.CodeForbidden, "Not allowed", 0},
	{errTooLarge, http.StatusRequestEntityTooLarge, api.CodeTooLarge, "The body is too large", 0},
	{errTooMany, http.StatusTooManyRequests, api.CodeTooMany, "Too many requests", time.Second},
	{errNotFound, http.StatusNotFound, api.CodeNotFound, "Not found", 0},
	{errMethod, http.StatusMethodNotAllowed, api.CodeMethod, "Method not allowed", 0},
	{errPanic, http.StatusInternalServerError, api.CodeInternal, "Internal error", 0},
	{context.Canceled, 499, api.CodeInternal, "The client went away", 0},
	{context.DeadlineExceeded, http.StatusServiceUnavailable, api.CodeUncertain, "The outcome is unknown", time.Second},
}

// fail answers with the problem that the error is.
func (s *Server) fail(w http.ResponseWriter, r *http.Request, err error) {
	p := problemOf(err)
	p.RequestID = w.Header().Get(headerRequestID)
	if p.Status == http.StatusInternalServerError {
		s.Logger.Error("request failed", "request", p.RequestID, "error", err)
	}
	h := w.Header()
	if r.Header.Get(headerForwarded) != "" && repeatable(r, err) {
		h.Set(headerNotLeader, "1")
	}
	if p.RetryAfterSeconds > 0 {
		h.Set("Retry-After", strconv.Itoa(p.RetryAfterSeconds))
	}
	if p.Status == http.StatusUnauthorized {
		h.Set("WWW-Authenticate", `Bearer realm="egress"`)
	}
	h.Set("Content-Type", api.ProblemType)
	writeJSON(w, p.Status, p)
}

// problemOf finds the kind of the error and takes what the error knows. An
// error of no kind is internal; its text stays in the log.
func problemOf(err error) *api.Problem {
	k := kind{errPanic, http.StatusInternalServerError, api.CodeInternal, "Internal error", 0}
	detail := errPanic.Error()
	for _, candidate := range kinds {
		if errors.Is(err, candidate.sentinel) {
			k, detail = candidate, err.Error()
			break
		}
	}
	p := &api.Problem{Type: api.ProblemBase + string(k.code), Title: k.title, Status: k.status, Detail: detail}
	retry := k.retry
	var field *lease.FieldError
	var refusal *lease.Refusal
	var ended *lease.EndedError
	var rate *rateError
	switch {
	case errors.As(err, &field):
		p.Field = field.Field
		p.Position = field.Pos + 1
	case errors.As(err, &refusal):
		p.Counts = counts(refusal.Counts)
		retry = refusal.RetryAfter
	case errors.As(err, &rate):
		retry = rate.wait
	case errors.As(err, &ended):
		p.Reason = string(ended.Reason)
	}
	p.RetryAfterSeconds = int(math.Ceil(retry.Seconds()))
	return p
}

func counts(c lease.Counts) *api.Counts {
	return &api.Counts{
		Matching:      c.Matching,
		Healthy:       c.Matching - c.Unhealthy,
		AtCapacity:    c.AtCapacity,
		ExitFull:      c.ExitFull,
		Cooling:       c.Cooling,
		Blocked:       c.Blocked,
		Frozen:        c.Frozen,
		Draining:      c.Draining,
		NoCredentials: c.NoCredentials,
		Unhealthy:     c.Unhealthy,
		Free:          c.Free,
	}
}
