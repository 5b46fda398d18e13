package probe

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"syscall"
)

// failure is a fault of the proxy in words of our own. Nothing that a server
// sent is quoted, and no error of net/http: both hold source ports, times and
// possibly credentials, and differ from one probe to the next.
type failure struct {
	stage Stage
	text  string
}

// Error is the stage and the text.
func (f *failure) Error() string { return string(f.stage) + ": " + f.text }

// tunnelError is an answer to CONNECT other than 200.
type tunnelError struct{ status int }

func (e *tunnelError) Error() string { return fmt.Sprintf("CONNECT: %d", e.status) }

// refusedTunnel is a hook of http.Transport.
func refusedTunnel(_ context.Context, _ *url.URL, _ *http.Request, response *http.Response) error {
	if response.StatusCode == http.StatusOK {
		return nil
	}
	return &tunnelError{response.StatusCode}
}

// checkStatus judges an answer to the request itself.
func (p *progress) checkStatus(status int) *failure {
	switch {
	case status == http.StatusProxyAuthRequired:
		return p.unauthorized(describe(p.target))
	case status >= 300 && status < 400:
		return &failure{StageHTTP, fmt.Sprintf("%s answered %s, a redirect: want 2xx, so give the URL that it leads to", describe(p.target), statusText(status))}
	case status < 200 || status > 299:
		return &failure{StageHTTP, fmt.Sprintf("%s answered %s: want 2xx", describe(p.target), statusText(status))}
	}
	return nil
}

// unauthorized says whether the proxy saw credentials, since "none configured"
// and "wrong ones" are mended in different places.
func (p *progress) unauthorized(request string) *failure {
	with := "without credentials"
	if p.authenticated {
		with = "with the configured credentials"
	}
	return &failure{StageAuth, fmt.Sprintf("the proxy answered 407 to %s %s", request, with)}
}

// statusText is the number and the standard's name for it; never the server's.
func statusText(status int) string {
	return strings.TrimSpace(fmt.Sprintf("%d %s", status, http.StatusText(status)))
}

// explain turns an error of a fetch into a failure. ctx is the fetch's own.
func (p *progress) explain(ctx context.Context, err error) *failure {
	at := p.step()
	var refused *tunnelError
	switch {
	case errors.As(err, &refused) && refused.status == http.StatusProxyAuthRequired:
		return p.unauthorized("CONNECT " + hostPort(p.target))
	case errors.As(err, &refused):
		return &failure{StageConnect, fmt.Sprintf("the proxy answered %s to CONNECT %s", statusText(refused.status), hostPort(p.target))}
	case timedOut(ctx, err):
		return &failure{StageTimeout, p.awaited(at)}
	case ctx.Err() != nil:
		return &failure{StageTimeout, "the probe was cancelled"}
	case at == resolving:
		return explainDNS(err)
	case at == dialling:
		return explainDial(err)
	case at == connecting:
		return p.explainAnswer(StageConnect, "CONNECT "+hostPort(p.target), err)
	case at == shakingHands:
		return p.explainTLS(err)
	default:
		return p.explainAnswer(StageHTTP, describe(p.target), err)
	}
}

// timedOut is true for the deadline of ctx, whoever noticed it first, and for a
// resolver that gave up just before it.
func timedOut(ctx context.Context, err error) bool {
	var lookup *net.DNSError
	return errors.Is(ctx.Err(), context.DeadlineExceeded) || errors.Is(err, context.DeadlineExceeded) ||
		errors.Is(err, os.ErrDeadlineExceeded) || errors.As(err, &lookup) && lookup.IsTimeout
}

// awaited is what had not happened when the time was up.
func (p *progress) awaited(at step) string {
	switch at {
	case resolving:
		return "the name servers did not answer for the proxy's name"
	case dialling:
		return "no connection to the proxy"
	case connecting:
		return "no answer to CONNECT " + hostPort(p.target)
	case shakingHands:
		return "no TLS handshake with " + p.target.Hostname()
	default:
		return "no complete answer from " + describe(p.target)
	}
}

func explainDNS(err error) *failure {
	var lookup *net.DNSError
	switch {
	case !errors.As(err, &lookup):
		// Literal addresses skip the look-up, and fail before any dialling
		// only for want of an address family or a local resource.
		return explainDial(err)
	case lookup.IsNotFound:
		return &failure{StageDNS, fmt.Sprintf("the proxy's name %s does not exist", lookup.Name)}
	default:
		return &failure{StageDNS, fmt.Sprintf("the name servers failed for the proxy's name %s", lookup.Name)}
	}
}

func explainDial(err error) *failure {
	var errno syscall.Errno
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return &failure{StageTCP, "nothing listens on the proxy's port: connection refused"}
	case errors.As(err, &errno):
		return &failure{StageTCP, "no connection to the proxy: " + errno.Error()}
	default:
		return &failure{StageTCP, "no connection to the proxy"}
	}
}

// explainAnswer is for answers that are not, or not wholly, HTTP.
func (p *progress) explainAnswer(stage Stage, request string, err error) *failure {
	if closed(err) {
		return &failure{stage, "the connection was closed before a complete answer to " + request}
	}
	return &failure{stage, fmt.Sprintf("the answer to %s is not HTTP, or its headers exceed %d KiB", request, maxHeader>>10)}
}

// closed lumps the ways together in which the other end can hang up, since the
// kernel's choice between an end of file and a reset depends on timing.
func closed(err error) bool {
	for _, hangUp := range []error{io.EOF, io.ErrUnexpectedEOF, syscall.ECONNRESET, syscall.EPIPE, net.ErrClosed} {
		if errors.Is(err, hangUp) {
			return true
		}
	}
	return false
}

func (p *progress) explainTLS(err error) *failure {
	host := p.target.Hostname()
	var (
		issuer   x509.UnknownAuthorityError
		name     x509.HostnameError
		invalid  x509.CertificateInvalidError
		noRecord tls.RecordHeaderError
		remote   *net.OpError
	)
	text := "the handshake with %s failed"
	switch {
	case errors.As(err, &issuer):
		text = "the certificate shown for %s is signed by an unknown authority: the proxy intercepts TLS, or ca_file lacks the target's CA"
	case errors.As(err, &name):
		text = "the certificate shown for %s is for other names"
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		text = "the certificate shown for %s has expired or is not yet valid"
	case errors.As(err, &invalid):
		text = "the certificate shown for %s is not valid for a server"
	case errors.As(err, &noRecord):
		text = "what the tunnel to %s leads to does not speak TLS"
	case closed(err):
		text = "the tunnel to %s was closed during the handshake"
	case errors.As(err, &remote) && remote.Op == "remote error":
		return &failure{StageTLS, fmt.Sprintf("%s refused the handshake: %v", host, remote.Err)}
	}
	return &failure{StageTLS, fmt.Sprintf(text, host)}
}
