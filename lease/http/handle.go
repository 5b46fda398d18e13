package http

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"strings"

	"github.com/egress-proxies/egress/lease"
	"github.com/egress-proxies/egress/lease/api"
)

// maxBody bounds a request: the largest valid one, a selector of 1 KiB and a
// target of 2 KiB among some names, is far smaller.
const maxBody = 64 << 10

// handle turns a function from a body to an answer into a handler. The body is
// JSON, whatever its media type says; an empty one is the zero value.
func handle[In, Out any](s *Server, status int, f func(*http.Request, In) (Out, error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var in In
		body, err := decode(w, r, &in)
		if err != nil {
			s.fail(w, r, err)
			return
		}
		version := s.Service.Version()
		out, err := f(r, in)
		if s.Forward != nil && r.Context().Err() == nil && repeatable(r, err) {
			// The leadership ended meanwhile.
			r.Body = io.NopCloser(bytes.NewReader(body))
			s.Forward.serve(s, w, r)
			return
		}
		if err != nil {
			s.fail(w, r, err)
			return
		}
		if status == http.StatusNoContent {
			w.WriteHeader(status)
			return
		}
		// A list that changed while it was made belongs to neither version.
		if version == s.Service.Version() && s.notModified(w, r, version) {
			return
		}
		writeJSON(w, status, out)
	})
}

// repeatable says whether the request may be made again after the error: either
// nothing was done, or doing it twice is like doing it once.
func repeatable(r *http.Request, err error) bool {
	if errors.Is(err, lease.ErrUncertain) {
		return r.Pattern != "POST "+api.PathLeases || r.Header.Get(api.HeaderKey) != ""
	}
	return errors.Is(err, lease.ErrNoLeader)
}

// none is the body of a request that has none.
type none struct{}

// decode reads the body strictly: unknown fields are mistakes.
func decode(w http.ResponseWriter, r *http.Request, in any) (body []byte, err error) {
	if _, ok := in.(*none); ok || r.ContentLength == 0 {
		return nil, nil
	}
	body, err = io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	var tooLarge *http.MaxBytesError
	if errors.As(err, &tooLarge) {
		return nil, errTooLarge
	}
	if err != nil {
		return nil, fmt.Errorf("%w: the body can't be read: %w", lease.ErrInvalid, err)
	}
	if len(bytes.TrimSpace(body)) == 0 {
		return body, nil
	}
	decoder := json.NewDecoder(bytes.NewReader(body))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(in); err != nil {
		return nil, bodyError(err)
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%w: the body goes on after the JSON object", lease.ErrInvalid)
	}
	return body, nil
}

// bodyError names the field that is wrong, where the decoder knows it.
func bodyError(err error) error {
	var wrongType *json.UnmarshalTypeError
	if errors.As(err, &wrongType) {
		return &lease.FieldError{Field: wrongType.Field, Value: wrongType.Value, Pos: -1, Want: "want " + wanted(wrongType.Type)}
	}
	if field, ok := strings.CutPrefix(err.Error(), "json: unknown field "); ok {
		return fmt.Errorf("%w: the body has an unknown field %s", lease.ErrInvalid, field)
	}
	return fmt.Errorf("%w: the body: %w", lease.ErrInvalid, err)
}

// wanted says what a field takes in the terms of JSON, not of Go.
func wanted(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Struct, reflect.Map:
		return "a JSON object"
	case reflect.Slice, reflect.Array:
		return "a list"
	case reflect.Bool:
		return "true or false"
	case reflect.String:
		return "a string"
	case reflect.Float32, reflect.Float64:
		return "a number"
	default:
		return "a whole number"
	}
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
