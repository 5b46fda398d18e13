package api

import "fmt"

// ProblemType is the media type of errors (RFC 9457).
const ProblemType = "application/problem+json"

// ProblemBase starts the type of every problem; the rest is a Code.
const ProblemBase = "urn:egress:problem:"

// Code is the stable name of a kind of error.
type Code string

// The codes. docs/lease-api.md has a row for each.
const (
	CodeInvalid      Code = "invalid-request"
	CodeNoCapacity   Code = "no-capacity"
	CodeNoMatch      Code = "no-match"
	CodeUnknownLease Code = "unknown-lease"
	CodeUnknownProxy Code = "unknown-proxy"
	CodeEnded        Code = "lease-ended"
	CodeSessionEnded Code = "session-ended"
	CodeKeyReused    Code = "idempotency-key-reused"
	CodeQueueFull    Code = "queue-full"
	CodeNotReady     Code = "not-ready"
	CodeNoLeader     Code = "no-leader"
	CodeUncertain    Code = "outcome-unknown"
	CodeUnauthorized Code = "unauthorized"
	CodeForbidden    Code = "forbidden"
	CodeTooLarge     Code = "body-too-large"
	CodeTooMany      Code = "too-many-requests"
	CodeNotFound     Code = "not-found"
	CodeMethod       Code = "method-not-allowed"
	CodeMediaType    Code = "unsupported-media-type"
	CodeInternal     Code = "internal"
)

// Problem is the body of every error.
type Problem struct {
	// Type is ProblemBase and a Code.
	Type string `json:"type"`
	// Title is the same for all errors of the type.
	Title string `json:"title"`
	// Status is the HTTP status.
	Status int `json:"status"`
	// Detail explains this one.
	Detail string `json:"detail,omitempty"`
	// Field is the field of the request that is wrong.
	Field string `json:"field,omitempty"`
	// Position is the character of the field's value, from 1.
	Position int `json:"position,omitempty"`
	// Reason says why a lease or a session ended.
	Reason string `json:"reason,omitempty"`
	// RetryAfterSeconds is the header Retry-After again.
	RetryAfterSeconds int `json:"retry_after_seconds,omitempty"`
	// Counts is the arithmetic of a refusal.
	Counts *Counts `json:"counts,omitempty"`
	// RequestID finds the request in the access log.
	RequestID string `json:"request_id,omitempty"`
}

// Counts says what became of each proxy that matches. Matching is the sum of
// the others.
type Counts struct {
	// Matching proxies are chosen by the selector.
	Matching int `json:"matching"`
	// Healthy ones are those that are not unhealthy: not a part of the sum.
	Healthy int `json:"healthy"`
	// AtCapacity ones carry all the leases that they may.
	AtCapacity int `json:"at_capacity"`
	// ExitFull ones could carry more, but share an exit address that is full
	// with the leases of others.
	ExitFull int `json:"exit_full"`
	// Cooling ones were reported as failed.
	Cooling int `json:"cooling"`
	// Blocked ones were reported as blocked by the target.
	Blocked int `json:"blocked"`
	// Frozen ones get no new leases.
	Frozen int `json:"frozen"`
	// Draining ones are being taken out of service.
	Draining int `json:"draining"`
	// NoCredentials ones need credentials that the service does not know.
	NoCredentials int `json:"no_credentials"`
	// Unhealthy ones have a check that does not pass.
	Unhealthy int `json:"unhealthy"`
	// Free ones could be leased; fewer than were asked for.
	Free int `json:"free"`
}

// Error is the detail, or the title without one.
func (p *Problem) Error() string {
	if p.Detail != "" {
		return p.Detail
	}
	return fmt.Sprintf("%s (%d)", p.Title, p.Status)
}

// Code is the code in Type; empty for a foreign type.
func (p *Problem) Code() Code {
	if len(p.Type) <= len(ProblemBase) || p.Type[:len(ProblemBase)] != ProblemBase {
		return ""
	}
	return Code(p.Type[len(ProblemBase):])
}
