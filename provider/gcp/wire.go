package gcp

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"
)

// wireLog writes every call at trace level: what was asked and answered. It
// sits below the credentials and logs no header.
type wireLog struct {
	next   http.RoundTripper
	logger hclog.Logger
}

// RoundTrip implements http.RoundTripper.
func (w *wireLog) RoundTrip(request *http.Request) (*http.Response, error) {
	if !w.logger.IsTrace() {
		return w.next.RoundTrip(request)
	}
	sent := ""
	if request.GetBody != nil {
		if body, err := request.GetBody(); err == nil {
			content, _ := io.ReadAll(io.LimitReader(body, maxLogged))
			_ = body.Close()
			sent = elide(content)
		}
	}
	began := time.Now()
	response, err := w.next.RoundTrip(request)
	if err != nil {
		w.logger.Trace("call failed", "method", request.Method, "url", request.URL.Redacted(), "request", sent,
			"duration", time.Since(began).String(), "error", err)
		return nil, err
	}
	content, readErr := io.ReadAll(response.Body)
	_ = response.Body.Close()
	response.Body = io.NopCloser(io.MultiReader(bytes.NewReader(content), &failing{readErr}))
	w.logger.Trace("call", "method", request.Method, "url", request.URL.Redacted(), "request", sent,
		"status", response.StatusCode, "duration", time.Since(began).String(), "response", elide(content))
	return response, nil
}

// failing gives the error that reading the body ended with.
type failing struct{ err error }

func (f *failing) Read([]byte) (int, error) {
	if f.err == nil {
		return 0, io.EOF
	}
	return 0, f.err
}

// Bounds of what is written of one body.
const (
	maxLogged = 4 << 20 // parsed at all
	maxText   = 200     // of one value
	maxLine   = 4096    // of the whole
)

// secret are fields whose values are never written: user-data is in the
// metadata, and the guest may print anything on its serial port.
var secret = map[string]bool{"metadata": true, "contents": true, "access_token": true, "id_token": true, "assertion": true}

// elide gives a body as one line without secrets and without long values. What
// is no JSON is not written: there is no telling what it holds.
func elide(body []byte) string {
	if len(body) == 0 {
		return ""
	}
	var value any
	if err := json.Unmarshal(body, &value); err != nil {
		return fmt.Sprintf("<%d bytes that are no JSON>", len(body))
	}
	line, err := json.Marshal(elided(value))
	if err != nil {
		return fmt.Sprintf("<%d bytes>", len(body))
	}
	if len(line) > maxLine {
		return strings.ToValidUTF8(string(line[:maxLine]), "") + fmt.Sprintf("… <%d bytes in all>", len(body))
	}
	return string(line)
}

func elided(value any) any {
	switch value := value.(type) {
	case map[string]any:
		for key, inner := range value {
			if secret[key] {
				size, _ := json.Marshal(inner)
				value[key] = fmt.Sprintf("<%d bytes>", len(size))
				continue
			}
			value[key] = elided(inner)
		}
	case []any:
		for i, inner := range value {
			value[i] = elided(inner)
		}
	case string:
		if len(value) > maxText {
			return strings.ToValidUTF8(value[:maxText], "") + fmt.Sprintf("… <%d bytes>", len(value))
		}
	}
	return value
}
