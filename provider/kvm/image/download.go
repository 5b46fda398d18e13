package image

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/egress-proxies/egress/provider"
)

// errRedo says that the bytes so far must be thrown away: what the server has
// now is not what we began to read, or it can't go on in the middle.
var errRedo = errors.New("must start again")

// errStalled is the cause of ending a request that went quiet.
var errStalled = errors.New("no data")

// tries is how often in a row a request may fail without one byte of progress.
const tries = 5

// opened is a file as it is published, read once from its start.
type opened struct {
	io.ReadCloser
	// id tells this content from any other; empty when nothing does.
	id string
	// total is the length in bytes, or -1.
	total int64
	// resumed says whether it was read in more than one part.
	resumed func() bool
}

// download reads a URL from start to end. It goes on after a cut by itself,
// where the server can prove that it still has the same content.
type download struct {
	options Options
	source  Source
	ctx     context.Context

	body   io.ReadCloser
	cancel context.CancelCauseFunc // ends the request that body belongs to
	cause  func() error            // why that request was ended, if it was

	header   http.Header // of the first answer
	offset   int64
	total    int64
	failures int // in a row
	resumed  bool
}

// openURL sends the request and returns once the server has answered.
func openURL(ctx context.Context, source Source, options Options) (*opened, error) {
	d := &download{options: options, source: source, ctx: ctx, total: -1}
	for {
		response, err := d.get()
		if err == nil {
			d.header, d.total = response.Header, response.ContentLength
			return &opened{ReadCloser: d, id: d.id(), total: d.total, resumed: func() bool { return d.resumed }}, nil
		}
		if err := d.failed(err); err != nil {
			return nil, err
		}
	}
}

// get asks for the rest of the file from d.offset on and takes over the body.
func (d *download) get() (*http.Response, error) {
	ctx, cancel := context.WithCancelCause(d.ctx)
	timer := time.AfterFunc(d.options.StallTimeout, func() { cancel(errStalled) })
	defer timer.Stop()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, d.source.URL.String(), nil)
	if err != nil {
		cancel(nil)
		return nil, provider.Permanentf("url: %w", bare(err))
	}
	// A transport that unpacks on its own would hide the length and the bytes
	// that the digest is of.
	request.Header.Set("Accept-Encoding", "identity")
	if d.offset > 0 {
		request.Header.Set("Range", fmt.Sprintf("bytes=%d-", d.offset))
		if v := d.validator(); v != "" {
			request.Header.Set("If-Range", v)
		}
	}
	response, err := d.options.Client.Do(request)
	if err != nil {
		if cause := context.Cause(ctx); cause != nil && d.ctx.Err() == nil {
			err = cause
		}
		cancel(nil)
		return nil, d.unreachable(err)
	}
	if err := d.accept(response); err != nil {
		cancel(nil)
		response.Body.Close()
		return nil, err
	}
	d.body, d.cancel, d.cause = response.Body, cancel, func() error { return context.Cause(ctx) }
	return response, nil
}

// accept judges the status of an answer, and whether it goes on where we were.
func (d *download) accept(response *http.Response) error {
	status := response.StatusCode
	switch {
	case status == http.StatusOK && d.offset == 0:
		return nil
	case status == http.StatusOK, status == http.StatusRequestedRangeNotSatisfiable:
		return errRedo
	case status == http.StatusPartialContent:
		start, total, ok := contentRange(response.Header.Get("Content-Range"))
		etag := response.Header.Get("ETag")
		if !ok || start != d.offset || (d.total >= 0 && total >= 0 && total != d.total) || (etag != "" && etag != d.header.Get("ETag")) {
			return errRedo
		}
		return nil
	case status == http.StatusRequestTimeout, status == http.StatusTooEarly, status == http.StatusTooManyRequests, status >= 500:
		return provider.Transientf("the server answered %q", response.Status)
	default:
		return provider.Permanentf("the server answered %q", response.Status)
	}
}

// Read gives the file's bytes, over as many requests as it takes.
func (d *download) Read(p []byte) (int, error) {
	for {
		n, err := d.read(p)
		d.offset += int64(n)
		if n > 0 {
			d.failures = 0
			return n, nil // err comes again
		}
		if err == nil {
			continue
		}
		if err == io.EOF && (d.total < 0 || d.offset == d.total) {
			return 0, io.EOF
		}
		if err := d.resume(err); err != nil {
			return 0, err
		}
	}
}

// read reads once from the current request, and ends it when it goes quiet.
func (d *download) read(p []byte) (int, error) {
	timer := time.AfterFunc(d.options.StallTimeout, func() { d.cancel(errStalled) })
	n, err := d.body.Read(p)
	timer.Stop()
	if err != nil && err != io.EOF {
		if cause := d.cause(); cause != nil {
			err = cause
		}
	}
	return n, err
}

// resume makes a new request for the rest, or gives errRedo when the two parts
// could not be told to belong together.
func (d *download) resume(cause error) error {
	_ = d.Close()
	if err := d.failed(provider.Transientf("%s: %w", d.where(), cause)); err != nil {
		return err
	}
	if d.validator() == "" && declaredID(d.source) == "" {
		return errRedo
	}
	for {
		_, err := d.get()
		if err == nil {
			d.resumed = true
			return nil
		}
		if err := d.failed(err); err != nil {
			return err
		}
	}
}

// failed counts a failure and waits before the next try; an error that is not
// worth one, or was one too many, is returned.
func (d *download) failed(err error) error {
	if d.ctx.Err() != nil {
		return context.Cause(d.ctx)
	}
	if errors.Is(err, errRedo) || provider.Classify(err) != provider.ErrTransient {
		return err
	}
	if d.failures++; d.failures >= tries {
		return err
	}
	d.options.Logger.Debug("fetching an image: trying again", "image", d.source.String(), "offset", d.offset, "error", err)
	return d.options.pause(d.ctx, d.failures)
}

// where says how far we came.
func (d *download) where() string {
	if d.total < 0 {
		return fmt.Sprintf("cut after %d bytes", d.offset)
	}
	return fmt.Sprintf("cut after %d of %d bytes", d.offset, d.total)
}

// validator is what If-Range may carry: a strong ETag or a date (RFC 9110, 13.1.5).
func (d *download) validator() string {
	if etag := d.header.Get("ETag"); etag != "" && !strings.HasPrefix(etag, "W/") {
		return etag
	}
	return d.header.Get("Last-Modified")
}

// id is the declared digest, or else whatever the server changes along with
// the content. A length alone is not enough.
func (d *download) id() string {
	if id := declaredID(d.source); id != "" {
		return id
	}
	etag, modified := d.header.Get("ETag"), d.header.Get("Last-Modified")
	if etag == "" && modified == "" {
		return ""
	}
	return hashID("url", d.source.URL.String(), etag, modified, strconv.FormatInt(d.total, 10))
}

// Close ends the current request.
func (d *download) Close() error {
	d.cancel(nil)
	return d.body.Close()
}

// unreachable classifies an error of a request that got no answer. A server
// that can't prove who it is stays that way until a person acts.
func (d *download) unreachable(err error) error {
	var (
		unknown  x509.UnknownAuthorityError
		hostname x509.HostnameError
		invalid  x509.CertificateInvalidError
		verify   *tls.CertificateVerificationError
	)
	err = bare(err)
	switch {
	case errors.Is(err, errStalled):
		return provider.Transientf("no answer within %s", d.options.StallTimeout)
	case errors.Is(err, errDowngrade),
		errors.As(err, &unknown), errors.As(err, &hostname), errors.As(err, &invalid), errors.As(err, &verify):
		return provider.Permanentf("%w", err)
	default:
		return provider.Transientf("%w", err)
	}
}

// bare removes the URL from an error of net/http, which may hold a secret.
func bare(err error) error {
	var e *url.Error
	if errors.As(err, &e) {
		return e.Err
	}
	return err
}

// contentRange reads "bytes 5-9/10"; total is -1 for "*".
func contentRange(s string) (start, total int64, ok bool) {
	s, ok = strings.CutPrefix(s, "bytes ")
	span, size, found := strings.Cut(s, "/")
	first, _, dash := strings.Cut(span, "-")
	start, err := strconv.ParseInt(first, 10, 64)
	if !ok || !found || !dash || err != nil {
		return 0, 0, false
	}
	if size == "*" {
		return start, -1, true
	}
	total, err = strconv.ParseInt(size, 10, 64)
	return start, total, err == nil
}
