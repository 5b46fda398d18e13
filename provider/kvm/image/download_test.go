package image

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/egress-proxies/egress/provider"
)

func TestAnswersAreClassified(t *testing.T) {
	for _, c := range []struct {
		status int
		class  error
		tries  int
	}{
		{http.StatusBadRequest, provider.ErrPermanent, 1},
		{http.StatusUnauthorized, provider.ErrPermanent, 1},
		{http.StatusForbidden, provider.ErrPermanent, 1},
		{http.StatusNotFound, provider.ErrPermanent, 1},
		{http.StatusGone, provider.ErrPermanent, 1},
		{http.StatusRequestTimeout, provider.ErrTransient, tries},
		{http.StatusTooManyRequests, provider.ErrTransient, tries},
		{http.StatusInternalServerError, provider.ErrTransient, tries},
		{http.StatusServiceUnavailable, provider.ErrTransient, tries},
	} {
		server := newWeb(t, nil)
		server.serve = func(_ int, w http.ResponseWriter, _ *http.Request) bool { w.WriteHeader(c.status); return true }
		p := newPool("a")
		_, err := cache(t).Ensure(t.Context(), server.source(t), p)
		if provider.Classify(err) != c.class || server.count() != c.tries {
			t.Errorf("%d: %v, class %v after %d requests; want %v after %d", c.status, err, provider.Classify(err), server.count(), c.class, c.tries)
		}
		if !strings.Contains(err.Error(), fmt.Sprint(c.status)) || !strings.Contains(err.Error(), "/disk.img") || strings.Contains(err.Error(), "geheim") {
			t.Errorf("%d: want status and URL, and not its query, in %q", c.status, err)
		}
		p.empty(t)
	}
}

func TestNoServerIsTransient(t *testing.T) {
	server := newWeb(t, nil)
	s := server.source(t)
	server.Close()
	_, err := cache(t).Ensure(t.Context(), s, newPool("a"))
	if provider.Classify(err) != provider.ErrTransient || strings.Contains(err.Error(), "geheim") {
		t.Errorf("got %v", err)
	}
}

func TestServerThatCannotProveItselfIsPermanent(t *testing.T) {
	server := newWeb(t, nil)
	secure := httptest.NewTLSServer(server)
	t.Cleanup(secure.Close)
	s := server.source(t)
	s.URL.Scheme, s.URL.Host = "https", strings.TrimPrefix(secure.URL, "https://")
	if _, err := cache(t).Ensure(t.Context(), s, newPool("a")); provider.Classify(err) != provider.ErrPermanent {
		t.Errorf("unknown authority: %v", err)
	}
	redirect := httptest.NewTLSServer(http.RedirectHandler(server.URL+"/disk.img", http.StatusFound))
	t.Cleanup(redirect.Close)
	s.URL.Host = strings.TrimPrefix(redirect.URL, "https://")
	client := redirect.Client()
	client.CheckRedirect = defaultClient().CheckRedirect
	c := cache(t, func(o *Options) { o.Client = client })
	if _, err := c.Ensure(t.Context(), s, newPool("a")); provider.Classify(err) != provider.ErrPermanent || !strings.Contains(err.Error(), "stays on https") {
		t.Errorf("redirect to http: %v", err)
	}
}

// Each case is a server that misbehaves at first; the image arrives whole.
func TestImageArrivesWholeInSpiteOf(t *testing.T) {
	image := disk(4 << 20)
	other := disk(3 << 20)
	for _, c := range []struct {
		name  string
		setup func(s *web)
		serve func(s *web) func(n int, w http.ResponseWriter, r *http.Request) bool
		want  []byte
		// requests that it takes; 0 is not checked.
		requests int
		// resumed says whether the last request was for the rest alone.
		resumed bool
	}{
		{name: "no Content-Length", requests: 1, serve: func(s *web) func(int, http.ResponseWriter, *http.Request) bool {
			return func(n int, w http.ResponseWriter, _ *http.Request) bool {
				w.(http.Flusher).Flush()
				w.Write(image)
				return true
			}
		}},
		{name: "one cut", requests: 2, resumed: true, serve: func(s *web) func(int, http.ResponseWriter, *http.Request) bool {
			return func(n int, w http.ResponseWriter, _ *http.Request) bool {
				if n == 1 {
					s.cut(w, 3<<20)
				}
				return false
			}
		}},
		{name: "a cut before the first byte", requests: 2, serve: func(s *web) func(int, http.ResponseWriter, *http.Request) bool {
			return func(n int, w http.ResponseWriter, _ *http.Request) bool {
				if n == 1 {
					panic(http.ErrAbortHandler)
				}
				return false
			}
		}},
		{name: "many cuts, each with progress", requests: 17, resumed: true, serve: func(s *web) func(int, http.ResponseWriter, *http.Request) bool {
			return func(n int, w http.ResponseWriter, r *http.Request) bool {
				if n > 16 {
					return false
				}
				start := (n - 1) * 100_000
				if n == 1 {
					s.cut(w, 100_000)
				}
				w.Header().Set("ETag", s.etag)
				w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", start, len(image)-1, len(image)))
				w.WriteHeader(http.StatusPartialContent)
				w.Write(image[start : start+100_000])
				w.(http.Flusher).Flush()
				panic(http.ErrAbortHandler)
			}
		}},
		{name: "a cut and an overloaded server", requests: 4, resumed: true, serve: func(s *web) func(int, http.ResponseWriter, *http.Request) bool {
			return func(n int, w http.ResponseWriter, _ *http.Request) bool {
				switch n {
				case 1:
					s.cut(w, 3<<20)
				case 2, 3:
					w.WriteHeader(http.StatusServiceUnavailable)
					return true
				}
				return false
			}
		}},
		{name: "a stall", requests: 2, resumed: true, serve: func(s *web) func(int, http.ResponseWriter, *http.Request) bool {
			return func(n int, w http.ResponseWriter, r *http.Request) bool {
				if n == 1 {
					s.stall(w, r, 3<<20)
				}
				return n == 1
			}
		}},
		{name: "no answer at all", requests: 2, serve: func(s *web) func(int, http.ResponseWriter, *http.Request) bool {
			return func(n int, w http.ResponseWriter, r *http.Request) bool {
				if n == 1 {
					<-r.Context().Done()
				}
				return n == 1
			}
		}},
		{name: "a cut and nothing to prove the rest by", requests: 2, setup: func(s *web) { s.etag = "" }, serve: func(s *web) func(int, http.ResponseWriter, *http.Request) bool {
			return func(n int, w http.ResponseWriter, _ *http.Request) bool {
				if n == 1 {
					s.cut(w, 3<<20)
				}
				return false
			}
		}},
		{name: "a cut and other content after it", requests: 3, want: other, serve: func(s *web) func(int, http.ResponseWriter, *http.Request) bool {
			return func(n int, w http.ResponseWriter, _ *http.Request) bool {
				if n == 1 {
					defer s.change(other, `"two"`)
					s.cut(w, 2<<20+5)
				}
				return false
			}
		}},
		{name: "a rest of other content under the same name", requests: 3, serve: func(s *web) func(int, http.ResponseWriter, *http.Request) bool {
			return func(n int, w http.ResponseWriter, _ *http.Request) bool {
				switch n {
				case 1:
					s.cut(w, 3<<20)
				case 2:
					w.Header().Set("ETag", `"two"`)
					w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", 3<<20, 4<<20-1, 4<<20))
					w.WriteHeader(http.StatusPartialContent)
					w.Write(other[:1<<20])
					return true
				}
				return false
			}
		}},
		{name: "a server that ignores ranges", requests: 3, serve: func(s *web) func(int, http.ResponseWriter, *http.Request) bool {
			return func(n int, w http.ResponseWriter, r *http.Request) bool {
				if n == 1 {
					s.cut(w, 3<<20)
				}
				r.Header.Del("Range")
				return false
			}
		}},
		{name: "a range that begins elsewhere", requests: 3, serve: func(s *web) func(int, http.ResponseWriter, *http.Request) bool {
			return func(n int, w http.ResponseWriter, r *http.Request) bool {
				switch n {
				case 1:
					s.cut(w, 3<<20)
				case 2:
					w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", 3<<20-1, 4<<20-1, 4<<20))
					w.WriteHeader(http.StatusPartialContent)
					w.Write(image[3<<20-1:])
					return true
				}
				return false
			}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			server := newWeb(t, image)
			if c.setup != nil {
				c.setup(server)
			}
			server.serve = c.serve(server)
			p := newPool("a")
			base := ensure(t, cache(t, func(o *Options) { o.StallTimeout = 2 * time.Second }), server.source(t), p)
			if c.want == nil {
				c.want = image
			}
			p.holds(t, base, c.want)
			if got := server.count(); c.requests != 0 && got != c.requests {
				t.Errorf("%d requests; want %d", got, c.requests)
			}
			if last := server.ranges[len(server.ranges)-1]; (last != "") != c.resumed {
				t.Errorf("ranges asked for: %q; want resumed %v", server.ranges, c.resumed)
			}
		})
	}
}

// A server whose lengths are wrong never gives an image, and never hangs us.
func TestServerThatLiesAboutLengths(t *testing.T) {
	image := disk(3 << 20)
	for name, c := range map[string]struct {
		serve func(s *web) func(int, http.ResponseWriter, *http.Request) bool
		class error
	}{
		"more than there is": {func(s *web) func(int, http.ResponseWriter, *http.Request) bool {
			return func(n int, w http.ResponseWriter, r *http.Request) bool {
				if r.Header.Get("Range") != "" {
					w.WriteHeader(http.StatusRequestedRangeNotSatisfiable)
					return true
				}
				w.Header().Set("ETag", s.etag)
				w.Header().Set("Content-Length", "9999999")
				w.Write(image)
				return true
			}
		}, provider.ErrTransient},
		"less than there is": {func(s *web) func(int, http.ResponseWriter, *http.Request) bool {
			return func(n int, w http.ResponseWriter, r *http.Request) bool {
				w.Header().Set("ETag", s.etag)
				w.Header().Set("Content-Length", "2000000")
				w.Write(image[:2000000])
				return true
			}
		}, provider.ErrPermanent}, // the digest shows it
	} {
		server := newWeb(t, image)
		server.serve = c.serve(server)
		s := server.source(t)
		s.SHA256 = sha(image)
		p := newPool("a")
		if _, err := cache(t).Ensure(t.Context(), s, p); provider.Classify(err) != c.class {
			t.Errorf("%s: got %v, want class %v", name, err, c.class)
		}
		p.empty(t)
	}
}

func TestServerThatIsCutForeverIsGivenUp(t *testing.T) {
	server := newWeb(t, disk(3<<20))
	server.serve = func(n int, w http.ResponseWriter, r *http.Request) bool {
		if n == 1 {
			server.cut(w, 2<<20)
		}
		panic(http.ErrAbortHandler)
	}
	p := newPool("a")
	_, err := cache(t).Ensure(t.Context(), server.source(t), p)
	if provider.Classify(err) != provider.ErrTransient || server.count() != tries {
		t.Errorf("after %d requests: %v", server.count(), err)
	}
	p.empty(t)
}

func TestWrongDigestIsPermanentAndTold(t *testing.T) {
	image := disk(1 << 20)
	server := newWeb(t, image)
	for _, want := range []Source{{SHA256: strings.Repeat("ab", 32)}, {SHA512: strings.Repeat("ab", 64)}} {
		s := server.source(t)
		s.SHA256, s.SHA512 = want.SHA256, want.SHA512
		p := newPool("a")
		_, err := cache(t).Ensure(t.Context(), s, p)
		if provider.Classify(err) != provider.ErrPermanent || !strings.Contains(err.Error(), want.SHA256+want.SHA512) {
			t.Errorf("got %v", err)
		}
		if want.SHA256 != "" && !strings.Contains(err.Error(), sha(image)) {
			t.Errorf("the digest of what came is not in %q", err)
		}
		p.empty(t)
	}
}

// A rest that was joined to the wrong beginning shows in the digest only; that
// is worth a clean start, not a permanent error.
func TestWrongDigestOfJoinedPartsStartsAgain(t *testing.T) {
	image := disk(4 << 20)
	server := newWeb(t, image)
	server.serve = func(n int, w http.ResponseWriter, r *http.Request) bool {
		switch n {
		case 1:
			server.cut(w, 3<<20)
		case 2:
			w.Header().Set("ETag", server.etag)
			w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", 3<<20, 4<<20-1, 4<<20))
			w.WriteHeader(http.StatusPartialContent)
			w.Write(image[:1<<20])
			return true
		}
		return false
	}
	s := server.source(t)
	s.SHA256 = sha(image)
	p := newPool("a")
	p.holds(t, ensure(t, cache(t), s, p), image)
	if server.count() != 3 {
		t.Errorf("%d requests; want 3", server.count())
	}
}

func FuzzContentRange(f *testing.F) {
	f.Add("bytes 5-9/10")
	f.Add("bytes 5-9/*")
	f.Add("bytes */10")
	f.Fuzz(func(t *testing.T, s string) {
		if start, _, ok := contentRange(s); ok && !strings.Contains(s, fmt.Sprint(start)) && start >= 0 && !strings.Contains(s, "+") && !strings.Contains(s, "0") {
			t.Errorf("%q begins at %d", s, start)
		}
	})
}
