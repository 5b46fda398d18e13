package image

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/egress-proxies/egress/provider"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// cache is one whose retries come at once and which is closed in the end.
func cache(t *testing.T, change ...func(*Options)) *Cache {
	options := Options{Owner: "here", Backoff: func(int) time.Duration { return time.Millisecond }, Client: defaultClient()}
	for _, f := range change {
		f(&options)
	}
	c := NewCache(options)
	t.Cleanup(func() {
		c.Close()
		options.Client.CloseIdleConnections()
	})
	return c
}

// ensure calls Ensure and fails the test on an error.
func ensure(t *testing.T, c *Cache, s Source, p *pool) Base {
	t.Helper()
	base, err := c.Ensure(t.Context(), s, p)
	if err != nil {
		t.Fatal(err)
	}
	return base
}

// eventually waits for a condition that others bring about.
func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !condition(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("never came: %s", what)
		}
	}
}

func TestAnyNumberOfCallersOnTwoHostsMakeOneDownload(t *testing.T) {
	image := disk(3 << 20)
	server := newWeb(t, image)
	release := make(chan struct{})
	server.serve = func(int, http.ResponseWriter, *http.Request) bool { <-release; return false }
	c := cache(t)
	a, b := newPool("a"), newPool("b")
	var wg sync.WaitGroup
	for i := range 40 {
		wg.Go(func() {
			if _, err := c.Ensure(t.Context(), server.source(t), []*pool{a, b}[i%2]); err != nil {
				t.Error(err)
			}
		})
	}
	eventually(t, "every caller waits", func() bool { return waiters(c) == 40 })
	close(release)
	wg.Wait()
	if server.count() != 1 || a.uploadCount() != 1 || b.uploadCount() != 1 {
		t.Errorf("%d downloads, %d and %d uploads; want one each", server.count(), a.uploadCount(), b.uploadCount())
	}
	a.holds(t, ensure(t, c, server.source(t), a), image)
	b.holds(t, ensure(t, c, server.source(t), b), image)
}

// waiters counts the callers that wait for a delivery.
func waiters(c *Cache) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := 0
	for _, flights := range c.flights {
		for _, f := range flights {
			for _, d := range f.deliveries {
				n += d.waiters
			}
		}
	}
	return n
}

func TestHostThatJoinsLateGetsTheBeginning(t *testing.T) {
	image := disk(4 << 20)
	server := newWeb(t, image)
	release := make(chan struct{})
	server.serve = func(n int, w http.ResponseWriter, _ *http.Request) bool {
		w.Header().Set("ETag", server.etag)
		w.Write(image[:3<<20])
		w.(http.Flusher).Flush()
		<-release
		w.Write(image[3<<20:])
		return true
	}
	c := cache(t)
	a, b := newPool("a"), newPool("b")
	var wg sync.WaitGroup
	bring := func(p *pool) func() {
		return func() {
			base, err := c.Ensure(t.Context(), server.source(t), p)
			if err != nil {
				t.Error(err)
				return
			}
			p.holds(t, base, image)
		}
	}
	wg.Go(bring(a))
	eventually(t, "a has data", func() bool { return len(a.names()) == 1 && len(a.content(a.names()[0])) > 1<<20 })
	wg.Go(bring(b))
	eventually(t, "b has data", func() bool { return len(b.names()) == 1 && len(b.content(b.names()[0])) > 1<<20 })
	close(release)
	wg.Wait()
	if server.count() != 1 {
		t.Errorf("%d downloads; want 1", server.count())
	}
}

func TestHostThatJoinsTooLateFetchesAgain(t *testing.T) {
	image := disk(joinLimit + 4<<20)
	server := newWeb(t, image)
	release := make(chan struct{})
	server.serve = func(n int, w http.ResponseWriter, _ *http.Request) bool {
		if n > 1 {
			return false
		}
		w.Header().Set("ETag", server.etag)
		w.Header().Set("Content-Length", fmt.Sprint(len(image)))
		w.Write(image[:joinLimit+3<<20])
		w.(http.Flusher).Flush()
		<-release
		w.Write(image[joinLimit+3<<20:])
		return true
	}
	c := cache(t)
	a, b := newPool("a"), newPool("b")
	var wg sync.WaitGroup
	wg.Go(func() { ensure(t, c, server.source(t), a) })
	eventually(t, "the beginning is gone", func() bool { return len(a.names()) == 1 && len(a.content(a.names()[0])) > joinLimit+1<<20 })
	b.holds(t, ensure(t, c, server.source(t), b), image)
	close(release)
	wg.Wait()
	a.holds(t, ensure(t, c, server.source(t), a), image)
}

func TestCancelledCallerDoesNotDisturbTheOthers(t *testing.T) {
	image := disk(1 << 20)
	server := newWeb(t, image)
	release := make(chan struct{})
	server.serve = func(n int, w http.ResponseWriter, _ *http.Request) bool {
		w.Header().Set("ETag", server.etag)
		w.Write(image[:1<<19])
		w.(http.Flusher).Flush()
		<-release
		w.Write(image[1<<19:])
		return true
	}
	c, p := cache(t), newPool("a")
	first, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		if _, err := c.Ensure(first, server.source(t), p); !errors.Is(err, context.Canceled) {
			t.Errorf("the first caller got %v; want its cancellation", err)
		}
	})
	eventually(t, "the download runs", func() bool { return server.count() == 1 })
	wg.Go(func() { p.holds(t, ensure(t, c, server.source(t), p), image) })
	eventually(t, "both wait", func() bool { return waiters(c) == 2 })
	cancel()
	eventually(t, "the first has left", func() bool { return waiters(c) == 1 })
	close(release)
	wg.Wait()
}

func TestDownloadWithoutACallerEndsAndLeavesNothing(t *testing.T) {
	server := newWeb(t, disk(4<<20))
	server.serve = func(n int, w http.ResponseWriter, r *http.Request) bool { server.stall(w, r, 3<<20); return true }
	c, p := cache(t), newPool("a")
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		if _, err := c.Ensure(ctx, server.source(t), p); !errors.Is(err, context.Canceled) {
			t.Errorf("got %v; want the cancellation", err)
		}
	})
	eventually(t, "data arrives", func() bool { return len(p.names()) == 1 && len(p.content(p.names()[0])) > 0 })
	cancel()
	wg.Wait()
	eventually(t, "the partial file is gone", func() bool { return len(p.names()) == 0 })
}

func TestCloseEndsEverything(t *testing.T) {
	server := newWeb(t, disk(4<<20))
	server.serve = func(n int, w http.ResponseWriter, r *http.Request) bool { server.stall(w, r, 3<<20); return true }
	c, p := cache(t), newPool("a")
	var wg sync.WaitGroup
	wg.Go(func() {
		if _, err := c.Ensure(t.Context(), server.source(t), p); !errors.Is(err, errClosed) {
			t.Errorf("got %v; want that the cache was closed", err)
		}
	})
	eventually(t, "data arrives", func() bool { return len(p.names()) == 1 && len(p.content(p.names()[0])) > 0 })
	c.Close()
	wg.Wait()
	p.empty(t)
	if _, err := c.Ensure(t.Context(), server.source(t), p); !errors.Is(err, errClosed) {
		t.Errorf("after Close: %v", err)
	}
}

func TestImageThatIsThereIsNotFetched(t *testing.T) {
	image := disk(1 << 20)
	server := newWeb(t, image)
	c, p := cache(t), newPool("a")
	s := server.source(t)
	s.SHA256 = sha(image)
	first := ensure(t, c, s, p)
	second := ensure(t, cache(t, func(o *Options) { o.Owner = "elsewhere" }), s, p)
	if server.count() != 1 || second != first {
		t.Errorf("%d requests; first %+v, then %+v", server.count(), first, second)
	}
	if !strings.HasPrefix(first.Volume.Name, Prefix+sha(image)[:idLength]) || first.VirtualSize != 1<<20 || first.Format != Raw {
		t.Errorf("base is %+v", first)
	}
}

func TestChangedContentBecomesANewBase(t *testing.T) {
	server := newWeb(t, disk(1<<20))
	c, p := cache(t), newPool("a")
	old := ensure(t, c, server.source(t), p)
	next := disk(2 << 20)
	server.change(next, `"two"`)
	base := ensure(t, c, server.source(t), p)
	if base.Volume.Name == old.Volume.Name || string(p.content(base.Volume.Name)) != string(next) {
		t.Errorf("the new content did not become a base of its own")
	}
	if len(p.content(old.Volume.Name)) != 1<<20 {
		t.Errorf("the old base, on which guests may run, was touched")
	}
}

func TestServerThatTellsNothingIsAskedEachTime(t *testing.T) {
	server := newWeb(t, disk(1<<20))
	server.etag = ""
	c, p := cache(t), newPool("a")
	first := ensure(t, c, server.source(t), p)
	server.change(disk(3<<20), "")
	if second := ensure(t, c, server.source(t), p); second.Volume.Name == first.Volume.Name || second.VirtualSize != 3<<20 {
		t.Errorf("an image that could have changed was reused: %+v", second)
	}
}

func TestLocalFileIsNamedByItsContent(t *testing.T) {
	path := filepath.Join(t.TempDir(), "disk")
	image := disk(1 << 20)
	if err := os.WriteFile(path, image, 0o600); err != nil {
		t.Fatal(err)
	}
	c, p := cache(t), newPool("a")
	base := ensure(t, c, Source{Path: path}, p)
	p.holds(t, base, image)
	if again := ensure(t, c, Source{Path: path}, p); again != base || !strings.HasPrefix(base.Volume.Name, Prefix+sha(image)[:idLength]) {
		t.Errorf("first %+v, then %+v", base, again)
	}
	if err := os.WriteFile(path, disk(2<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	if again := ensure(t, c, Source{Path: path}, p); again.VirtualSize != 2<<20 {
		t.Errorf("the change was not seen: %+v", again)
	}
}

func TestLocalFilesThatCannotBe(t *testing.T) {
	dir := t.TempDir()
	c, p := cache(t), newPool("a")
	for _, path := range []string{filepath.Join(dir, "none"), dir, "/dev/null"} {
		if _, err := c.Ensure(t.Context(), Source{Path: path}, p); provider.Classify(err) != provider.ErrPermanent {
			t.Errorf("%s: %v", path, err)
		}
	}
	p.empty(t)
}

func TestProgressIsTold(t *testing.T) {
	image := disk(4 << 20)
	server := newWeb(t, image)
	told := make(chan string, 100)
	seen := make(chan struct{})
	server.serve = func(n int, w http.ResponseWriter, _ *http.Request) bool {
		w.Header().Set("Content-Length", fmt.Sprint(len(image)))
		w.Write(image[:3<<20])
		w.(http.Flusher).Flush()
		<-seen
		w.Write(image[3<<20:])
		return true
	}
	ctx := provider.WithProgress(t.Context(), func(message string) {
		select {
		case told <- message:
		default:
		}
	})
	c := cache(t, func(o *Options) { o.ReportEvery = time.Millisecond })
	var wg sync.WaitGroup
	wg.Go(func() {
		if _, err := c.Ensure(ctx, server.source(t), newPool("a")); err != nil {
			t.Error(err)
		}
	})
	for message := range told {
		if strings.Contains(message, "geheim") {
			t.Errorf("the URL's secret is in %q", message)
		}
		if strings.Contains(message, ": 75% of 4 MiB") {
			break
		}
	}
	close(seen)
	wg.Wait()
}

func TestHeldUploadDoesNotHoldTheOthers(t *testing.T) {
	image := disk(4 << 20)
	server := newWeb(t, image)
	stuck, fine := newPool("stuck"), newPool("fine")
	stuck.onUpload = func(ctx context.Context, _ string, _ io.Reader) error {
		<-ctx.Done()
		return ctx.Err()
	}
	c := cache(t, func(o *Options) { o.TargetTimeout = 2 * time.Second })
	var wg sync.WaitGroup
	wg.Go(func() {
		_, err := c.Ensure(t.Context(), server.source(t), stuck)
		if provider.Classify(err) != provider.ErrTransient || !strings.Contains(err.Error(), "took no data for 2s") {
			t.Errorf("the stuck host's caller got %v", err)
		}
	})
	wg.Go(func() { fine.holds(t, ensure(t, c, server.source(t), fine), image) })
	wg.Wait()
	stuck.empty(t)
}
