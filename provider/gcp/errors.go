package gcp

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"cloud.google.com/go/auth"
	"cloud.google.com/go/compute/apiv1/computepb"
	"google.golang.org/api/googleapi"

	"github.com/egress-proxies/egress/provider"
)

// scope is how far a refusal reaches: where else the same start may work.
type scope int

const (
	everywhere scope = iota // another zone would refuse it too
	oneZone                 // the zone has no machines left
	oneRegion               // a quota, which Google counts by region
)

// refusal is an error with its scope.
type refusal struct {
	err   error
	scope scope
}

func (r *refusal) Error() string { return r.err.Error() }
func (r *refusal) Unwrap() error { return r.err }

// scopeOf an error; everywhere when it has none.
func scopeOf(err error) scope {
	var r *refusal
	if errors.As(err, &r) {
		return r.scope
	}
	return everywhere
}

// translate gives an error of the SDK its class, and what was being done. The
// text is Google's own: it names the quota, the permission or the API, and a
// link to where it is changed.
func translate(doing string, err error) error {
	if err == nil {
		return nil
	}
	var refused *googleapi.Error
	if errors.As(err, &refused) {
		return refusedBy(doing, refused)
	}
	var unauthorized *auth.Error
	if errors.As(err, &unauthorized) && unauthorized.Response != nil {
		status := unauthorized.Response.StatusCode
		if status >= 400 && status < 500 && status != http.StatusTooManyRequests {
			return provider.Permanentf("%s: Google refuses the credentials: %w", doing, err)
		}
		return provider.Transientf("%s: no access token: %w", doing, err)
	}
	var classified *provider.Error
	if errors.As(err, &classified) {
		return err
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return provider.Transientf("%s: Google did not answer in time: %w", doing, err)
	}
	return provider.Transientf("%s: %w", doing, err)
}

// Reasons of errors that the status alone does not tell apart. Those with
// capitals come in the details, the others in the list of errors.
var (
	rateReasons  = []string{"rateLimitExceeded", "userRateLimitExceeded", "RATE_LIMIT_EXCEEDED", "resourceOperationRateExceeded"}
	quotaReasons = []string{"quotaExceeded", "limitExceeded", "QUOTA_EXCEEDED"}
	notYet       = []string{"resourceNotReady", "resourceInUseByAnotherResource"}
)

func refusedBy(doing string, e *googleapi.Error) error {
	has := func(reasons []string) bool {
		return slices.ContainsFunc(e.Errors, func(item googleapi.ErrorItem) bool { return slices.Contains(reasons, item.Reason) }) ||
			slices.ContainsFunc(reasons, func(reason string) bool { return strings.Contains(e.Body, `"`+reason+`"`) })
	}
	message := fmt.Errorf("%s: %s%w", doing, text(e), &quiet{e})
	switch {
	case stockout(text(e)):
		return &refusal{provider.Quotaf("%w", message), oneZone}
	case has(rateReasons), e.Code == http.StatusTooManyRequests && !has(quotaReasons):
		return provider.Transientf("%w", message)
	case has(quotaReasons):
		return &refusal{provider.Quotaf("%w", message), oneRegion}
	case e.Code == http.StatusNotFound && (strings.Contains(text(e), "/instances/") || strings.Contains(text(e), "/disks/")):
		return provider.NotFoundf("%w", message)
	case e.Code >= 500, e.Code == http.StatusRequestTimeout, e.Code == http.StatusConflict, has(notYet):
		return provider.Transientf("%w", message)
	case e.Code == http.StatusUnauthorized:
		return provider.Permanentf("%w (see credentials_file)", message)
	default: // a wrong value, a missing permission, a disabled API, a policy
		return provider.Permanentf("%w", message)
	}
}

// quiet keeps an error for errors.As without its text, which is many lines.
type quiet struct{ error }

func (*quiet) Error() string   { return "" }
func (q *quiet) Unwrap() error { return q.error }

// text is the message that Google gave, on one line.
func text(e *googleapi.Error) string {
	message := e.Message
	if message == "" && len(e.Errors) > 0 {
		message = e.Errors[0].Message
	}
	if message == "" {
		message = strings.TrimSpace(fmt.Sprintf("HTTP status %d %s", e.Code, http.StatusText(e.Code)))
	}
	return strings.Join(strings.Fields(message), " ")
}

// status is the HTTP status of an error, or 0.
func status(err error) int {
	var refused *googleapi.Error
	if errors.As(err, &refused) {
		return refused.Code
	}
	return 0
}

func stockout(text string) bool {
	return strings.Contains(text, "ZONE_RESOURCE_POOL_EXHAUSTED") || strings.Contains(text, "does not have enough resources available")
}

// operationError translates the end of an operation; nil when it went well.
func operationError(doing string, op *computepb.Operation) error {
	if op.GetError() == nil && op.GetHttpErrorStatusCode() < 400 {
		return nil
	}
	code, message := "", op.GetHttpErrorMessage()
	if list := op.GetError().GetErrors(); len(list) > 0 {
		code = list[0].GetCode()
		if list[0].GetMessage() != "" {
			message = list[0].GetMessage()
		}
	}
	err := fmt.Errorf("%s: %s: %s", doing, code, strings.Join(strings.Fields(message), " "))
	switch {
	case strings.Contains(code, "RESOURCE_POOL_EXHAUSTED"), strings.Contains(code, "STOCKOUT"), stockout(message):
		return &refusal{provider.Quotaf("%w", err), oneZone}
	case strings.Contains(code, "RATE"), code == "INTERNAL_ERROR", code == "RESOURCE_NOT_READY", code == "SERVICE_UNAVAILABLE":
		return provider.Transientf("%w", err)
	case strings.Contains(code, "QUOTA"), strings.Contains(code, "LIMIT_EXCEEDED"):
		return &refusal{provider.Quotaf("%w", err), oneRegion}
	case op.GetHttpErrorStatusCode() >= 500, op.GetHttpErrorStatusCode() == http.StatusTooManyRequests:
		return provider.Transientf("%w", err)
	case strings.HasPrefix(code, "INVALID"), strings.Contains(code, "PERMISSION"), strings.HasSuffix(code, "NOT_FOUND"),
		code == "CONDITION_NOT_MET", code == "UNSUPPORTED_OPERATION", op.GetHttpErrorStatusCode() >= 400:
		return provider.Permanentf("%w", err)
	default: // a code that is new
		return provider.Transientf("%w", err)
	}
}

// unreachable is the error for zones that could not be listed.
func unreachable(zones []string) error {
	return provider.Transientf("Google could not list the machines in %s: what is there is unknown", strings.Join(zones, ", "))
}
