package image

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// web serves one file and misbehaves as told.
type web struct {
	*httptest.Server
	// serve, when set, answers the n-th request, n from 1, and says whether it
	// did; the others are answered properly.
	serve func(n int, w http.ResponseWriter, r *http.Request) bool
	// etag is sent when it is not empty.
	etag string

	mu       sync.Mutex // guards all below
	content  []byte
	requests int
	ranges   []string
}

func newWeb(t *testing.T, content []byte) *web {
	s := &web{content: content, etag: `"one"`}
	s.Server = httptest.NewServer(s)
	t.Cleanup(s.Close)
	return s
}

func (s *web) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	s.requests++
	n, content, etag := s.requests, s.content, s.etag
	s.ranges = append(s.ranges, r.Header.Get("Range"))
	s.mu.Unlock()
	if s.serve != nil && s.serve(n, w, r) {
		return
	}
	if etag != "" {
		w.Header().Set("ETag", etag)
	}
	if start, ok := strings.CutPrefix(r.Header.Get("Range"), "bytes="); ok && (r.Header.Get("If-Range") == etag) {
		offset, _ := strconv.Atoi(strings.TrimSuffix(start, "-"))
		w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", offset, len(content)-1, len(content)))
		w.WriteHeader(http.StatusPartialContent)
		w.Write(content[offset:])
		return
	}
	w.Header().Set("Content-Length", strconv.Itoa(len(content)))
	w.Write(content)
}

// change replaces the file.
func (s *web) change(content []byte, etag string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.content, s.etag = content, etag
}

func (s *web) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.requests
}

// cut sends the first n bytes under the length of all, and breaks off.
func (s *web) cut(w http.ResponseWriter, n int) {
	if s.etag != "" {
		w.Header().Set("ETag", s.etag)
	}
	w.Header().Set("Content-Length", strconv.Itoa(len(s.content)))
	w.Write(s.content[:n])
	w.(http.Flusher).Flush()
	panic(http.ErrAbortHandler)
}

// stall sends the first n bytes and then nothing, until the client goes.
func (s *web) stall(w http.ResponseWriter, r *http.Request, n int) {
	if s.etag != "" {
		w.Header().Set("ETag", s.etag)
	}
	w.Header().Set("Content-Length", strconv.Itoa(len(s.content)))
	w.Write(s.content[:n])
	w.(http.Flusher).Flush()
	<-r.Context().Done()
}

// source is the server's file as an image, without a digest.
func (s *web) source(t *testing.T) Source {
	t.Helper()
	u, err := url.Parse(s.URL + "/disk.img?token=geheim")
	if err != nil {
		t.Fatal(err)
	}
	return Source{URL: u, Firmware: UEFI}
}

func sha(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// disk is a raw disk of n bytes, none of them like its neighbours.
func disk(n int) []byte {
	b := make([]byte, n)
	state := uint32(n) | 1
	for i := range b {
		state = state*1664525 + 1013904223
		b[i] = byte(state >> 24)
	}
	b[0], b[1] = 0xfa, 0xb8 // as boot code starts: no format's magic
	return b
}

// cutting cuts the first answer after n bytes.
func cutting(s *web, n int) {
	s.serve = func(request int, w http.ResponseWriter, _ *http.Request) bool {
		if request == 1 {
			s.cut(w, n)
		}
		return false
	}
}
