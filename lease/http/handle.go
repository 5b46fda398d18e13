package http

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/egress-proxies/egress/lease"
)

// maxBody bounds a request: the largest valid one, a selector of 1 KiB and a
// target of 2 KiB among some names, is far smaller.
const maxBody = 64 << 10

// handle turns a function from a body to an answer into a handler. The body is
// JSON, whatever its media type says; an empty one is the zero value.
func handle[In, Out any](s *Server, status int, f func(*http.Request, In) (Out, error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var in In
		if err := decode(w, r, &in); err != nil {
			s.fail(w, r, err)
			return
		}
		out, err := f(r, in)
		if err != nil {
			s.fail(w, r, err)
			return
		}
		if status == http.StatusNoContent {
			w.WriteHeader(status)
			return
		}
		if s.notModified(w, r) {
			return
		}
		writeJSON(w, status, out)
	})
}

// none is the body of a request that has none.
type none struct{}

// decode reads the body strictly: unknown fields are mistakes.
func decode(w http.ResponseWriter, r *http.Request, in any) error {
	if _, ok := in.(*none); ok || r.ContentLength == 0 {
		return nil
	}
	decoder := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody))
	decoder.DisallowUnknownFields()
	err := decoder.Decode(in)
	if errors.Is(err, io.EOF) {
		return nil
	}
	var tooLarge *http.MaxBytesError
	var wrongType *json.UnmarshalTypeError
	switch {
	case errors.As(err, &tooLarge):
		return errTooLarge
	case errors.As(err, &wrongType):
		return &lease.FieldError{Field: wrongType.Field, Value: wrongType.Value, Pos: -1, Want: "want a " + wrongType.Type.String()}
	case err != nil && strings.HasPrefix(err.Error(), "json: unknown field "):
		return fmt.Errorf("%w: the body has an unknown field %s", lease.ErrInvalid, strings.TrimPrefix(err.Error(), "json: unknown field "))
	case err != nil:
		return fmt.Errorf("%w: the body: %w", lease.ErrInvalid, err)
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return fmt.Errorf("%w: the body goes on after the JSON object", lease.ErrInvalid)
	}
	return nil
}

// writeJSON writes the answer.
func writeJSON(w http.ResponseWriter, status int, out any) {
	body, err := json.Marshal(out)
	if err != nil {
		http.Error(w, "the answer can't be written", http.StatusInternalServerError)
		return
	}
	if h := w.Header(); h.Get("Content-Type") == "" {
		h.Set("Content-Type", "application/json")
	}
	w.WriteHeader(status)
	_, _ = w.Write(append(body, '\n')) // the client may be gone
}
