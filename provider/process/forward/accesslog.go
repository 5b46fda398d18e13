package forward

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/netip"
	"net/url"
	"time"
)

// accessLog writes one line for each request, when it has ended. Credentials
// and queries are not part of it: both hold secrets.
type accessLog struct {
	logger *slog.Logger // nil is off
}

func newAccessLog(format string, out io.Writer) *accessLog {
	// "level" and "msg" say nothing in an access log.
	options := &slog.HandlerOptions{ReplaceAttr: func(_ []string, attr slog.Attr) slog.Attr {
		if attr.Key == slog.LevelKey || attr.Key == slog.MessageKey {
			return slog.Attr{}
		}
		return attr
	}}
	switch format {
	case "off":
		return &accessLog{}
	case "text":
		return &accessLog{logger: slog.New(slog.NewTextHandler(out, options))}
	default:
		return &accessLog{logger: slog.New(slog.NewJSONHandler(out, options))}
	}
}

// entry is what is known of one request.
type entry struct {
	start    time.Time
	client   netip.AddrPort
	method   string
	target   string
	status   int
	sent     int64 // bytes from the client to the target
	received int64 // bytes from the target to the client
	err      string
}

func newEntry(r *http.Request, client netip.AddrPort) *entry {
	return &entry{start: time.Now(), client: client, method: r.Method, target: loggable(r)}
}

// fail records the failure that the client is told.
func (e *entry) fail(f failure) {
	e.status, e.err = f.status, f.kind+": "+f.message
}

// loggable is the target without what may be secret.
func loggable(r *http.Request) string {
	if r.Method == http.MethodConnect {
		return r.Host
	}
	shown := url.URL{Scheme: r.URL.Scheme, Host: r.URL.Host, Path: r.URL.Path}
	return shown.String()
}

func (l *accessLog) write(e *entry) {
	if l.logger == nil {
		return
	}
	attrs := make([]slog.Attr, 0, 8)
	attrs = append(attrs,
		slog.String("client", e.client.String()),
		slog.String("method", e.method),
		slog.String("target", e.target),
		slog.Int("status", e.status),
		slog.Int64("sent", e.sent),
		slog.Int64("received", e.received),
		slog.Float64("seconds", time.Since(e.start).Round(time.Microsecond).Seconds()),
	)
	if e.err != "" {
		attrs = append(attrs, slog.String("error", e.err))
	}
	l.logger.LogAttrs(context.Background(), slog.LevelInfo, "", attrs...)
}

// counter sees the status and the size of an answer.
type counter struct {
	http.ResponseWriter
	entry *entry
}

func (c *counter) WriteHeader(status int) {
	if status >= 200 || status == http.StatusSwitchingProtocols {
		c.entry.status = status
	}
	c.ResponseWriter.WriteHeader(status)
}

func (c *counter) Write(p []byte) (int, error) {
	if c.entry.status == 0 {
		c.entry.status = http.StatusOK
	}
	n, err := c.ResponseWriter.Write(p)
	c.entry.received += int64(n)
	return n, err
}

// Unwrap lets http.ResponseController reach flush and hijack.
func (c *counter) Unwrap() http.ResponseWriter { return c.ResponseWriter }

// countedBody sees the size of a request.
type countedBody struct {
	io.ReadCloser
	entry *entry
}

func (b *countedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.entry.sent += int64(n)
	return n, err
}
