package http

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// headerRequestID names a request across processes and logs.
const headerRequestID = "X-Request-Id"

func newRequestID() string {
	var raw [8]byte
	rand.Read(raw[:])
	return hex.EncodeToString(raw[:])
}

// validRequestID accepts ids from outside that are safe in a log line.
func validRequestID(id string) bool {
	if id == "" || len(id) > 64 {
		return false
	}
	for _, c := range []byte(id) {
		if (c < '0' || c > '9') && (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && c != '-' && c != '_' && c != '.' {
			return false
		}
	}
	return true
}

// log gives each request an id and writes one line for it.
func (s *Server) log(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		id := r.Header.Get(headerRequestID)
		if !validRequestID(id) {
			id = newRequestID()
			r.Header.Set(headerRequestID, id)
		}
		w.Header().Set(headerRequestID, id)
		if !s.Logger.IsInfo() {
			next.ServeHTTP(w, r)
			return
		}
		start := time.Now()
		recorded := &recorder{ResponseWriter: w}
		next.ServeHTTP(recorded, r)
		s.Logger.Info("request", "request", id, "method", r.Method, "path", r.URL.Path,
			"status", recorded.status, "bytes", recorded.bytes, "duration", time.Since(start), "remote", r.RemoteAddr)
	})
}

// local refuses names in the Host header while there are no tokens: a page of
// another site whose name was pointed at this address (DNS rebinding) would
// count as the same origin.
func (s *Server) local(next http.Handler) http.Handler {
	if s.Tokens != nil {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host := r.Host
		if h, _, err := net.SplitHostPort(host); err == nil {
			host = h
		}
		host = strings.Trim(host, "[]")
		if _, err := netip.ParseAddr(host); err != nil && host != "localhost" {
			s.fail(w, r, fmt.Errorf("%w: without tokens, the Host header must be an IP address or localhost, not %q", errForbiddenHost, host))
			return
		}
		next.ServeHTTP(w, r)
	})
}

// recorder notes the status for the log.
type recorder struct {
	http.ResponseWriter
	status int
	bytes  int
}

// WriteHeader notes the status.
func (w *recorder) WriteHeader(status int) {
	if w.status == 0 {
		w.status = status
	}
	w.ResponseWriter.WriteHeader(status)
}

// Write counts the bytes.
func (w *recorder) Write(b []byte) (int, error) {
	if w.status == 0 {
		w.status = http.StatusOK
	}
	n, err := w.ResponseWriter.Write(b)
	w.bytes += n
	return n, err
}

// Unwrap lets http.ResponseController reach the connection.
func (w *recorder) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// recover turns a panic into a 500 and a log line.
func (s *Server) recover(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			v := recover()
			if v == nil {
				return
			}
			if v == http.ErrAbortHandler {
				panic(v)
			}
			s.Logger.Error("panic", "request", w.Header().Get(headerRequestID), "value", fmt.Sprint(v), "stack", string(debug.Stack()))
			s.fail(w, r, errPanic)
		}()
		next.ServeHTTP(w, r)
	})
}

// limiter is a token bucket for each caller.
type limiter struct {
	rate rate.Limit
	mu   sync.Mutex
	// buckets are by token name or by address. mu guards the map.
	buckets map[string]*rate.Limiter
}

// maxBuckets bounds the memory that strangers can cause. When it is reached,
// all buckets start anew.
const maxBuckets = 10000

func newLimiter(perSecond float64) *limiter {
	return &limiter{rate: rate.Limit(perSecond), buckets: map[string]*rate.Limiter{}}
}

// take takes one request out of the caller's bucket. It returns how long to
// wait when the bucket is empty.
func (l *limiter) take(r *http.Request) time.Duration {
	if l.rate == 0 {
		return 0
	}
	caller := "token/" + tokenName(r)
	if caller == "token/" {
		host, _, _ := net.SplitHostPort(r.RemoteAddr)
		caller = "address/" + host
	}
	l.mu.Lock()
	b := l.buckets[caller]
	if b == nil {
		if len(l.buckets) >= maxBuckets {
			clear(l.buckets)
		}
		b = rate.NewLimiter(l.rate, max(1, int(l.rate)))
		l.buckets[caller] = b
	}
	l.mu.Unlock()
	reservation := b.Reserve()
	wait := reservation.Delay()
	if wait > 0 {
		reservation.Cancel()
	}
	return wait
}

// rateError is an errTooMany that knows when to come back.
type rateError struct{ wait time.Duration }

// Error says when.
func (e *rateError) Error() string {
	return fmt.Sprintf("too many requests: come back in %s", e.wait.Round(time.Millisecond))
}

// Is makes it an errTooMany.
func (e *rateError) Is(target error) bool { return target == errTooMany }
