package forward

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"syscall"
)

// failure is what a client is told instead of an answer.
type failure struct {
	status int
	// kind is a proxy error type of RFC 9209.
	kind string
	// message says what failed, for a person.
	message string
}

// The kinds of RFC 9209, section 2.3, that this proxy uses.
const (
	kindDNSError     = "dns_error"
	kindDNSTimeout   = "dns_timeout"
	kindRefused      = "connection_refused"
	kindTimeout      = "connection_timeout"
	kindTerminated   = "connection_terminated"
	kindUnroutable   = "destination_ip_unroutable"
	kindProhibited   = "destination_ip_prohibited"
	kindDenied       = "http_request_denied"
	kindBadRequest   = "http_request_error"
	kindReadTimeout  = "http_response_timeout"
	kindProtocol     = "http_protocol_error"
	kindInternal     = "proxy_internal_error"
	kindNoResources  = "connection_limit_reached"
	statusClientGone = 499 // in the access log only
)

// failureOf says what an error on the way to a target means to the client.
func failureOf(target string, err error) failure {
	var refused *refusal
	var dns *net.DNSError
	var timeout net.Error
	f := func(status int, kind, what string) failure {
		return failure{status: status, kind: kind, message: fmt.Sprintf("%s: %s", what, target)}
	}
	switch {
	case errors.As(err, &refused):
		return failure{status: http.StatusForbidden, kind: kindProhibited, message: refused.Error()}
	case errors.Is(err, context.Canceled):
		return f(statusClientGone, kindTerminated, "the client went away")
	case errors.As(err, &dns) && dns.IsTimeout:
		return f(http.StatusGatewayTimeout, kindDNSTimeout, "dns: no answer in time for")
	case errors.As(err, &dns) && dns.IsNotFound:
		return f(http.StatusBadGateway, kindDNSError, "dns: no such host")
	case errors.As(err, &dns):
		return f(http.StatusBadGateway, kindDNSError, "dns: the look-up failed for")
	case errors.Is(err, syscall.ECONNREFUSED):
		return f(http.StatusBadGateway, kindRefused, "connection refused by")
	case errors.Is(err, syscall.ENETUNREACH), errors.Is(err, syscall.EHOSTUNREACH):
		return f(http.StatusBadGateway, kindUnroutable, "no route to")
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return f(http.StatusServiceUnavailable, kindNoResources, "no free source port or no source address for")
	case errors.Is(err, syscall.EMFILE), errors.Is(err, syscall.ENFILE), errors.Is(err, syscall.ENOBUFS):
		return f(http.StatusServiceUnavailable, kindNoResources, "the proxy has no descriptor left for")
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		return f(http.StatusGatewayTimeout, kindTimeout, "no answer in time from")
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		return f(http.StatusBadGateway, kindTerminated, "connection reset by")
	case isNoAddress(err):
		return f(http.StatusBadGateway, kindUnroutable, "no address of the proxy's family for")
	default:
		return f(http.StatusBadGateway, kindProtocol, "no usable answer from")
	}
}

// isNoAddress is true when a name has addresses, but none of the family that
// the source address fixes.
func isNoAddress(err error) bool {
	var addr *net.AddrError
	return errors.As(err, &addr)
}

// write answers with the failure. The connection goes on, so that a client can
// try another target.
func (f failure) write(w http.ResponseWriter) {
	header := w.Header()
	header.Set("Content-Type", "text/plain; charset=utf-8")
	header.Set("X-Content-Type-Options", "nosniff")
	header.Set("Proxy-Status", fmt.Sprintf(`egress; error=%s; details="%s"`, f.kind, quoted(f.message)))
	w.WriteHeader(f.status)
	_, _ = fmt.Fprintln(w, f.message) // a client that is gone is its own affair
}

// quoted makes text fit a string of a structured field (RFC 8941): printable
// ASCII with quotes and backslashes escaped.
func quoted(text string) string {
	var b strings.Builder
	for _, r := range text {
		switch {
		case r == '"' || r == '\\':
			b.WriteByte('\\')
			b.WriteRune(r)
		case r < ' ' || r > '~':
			b.WriteByte('?')
		default:
			b.WriteRune(r)
		}
	}
	return b.String()
}
