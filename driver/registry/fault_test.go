package registry

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
)

// fakeConsul accepts everything, or answers as told.
type fakeConsul struct {
	*httptest.Server
	mu     sync.Mutex
	answer func(http.ResponseWriter, *http.Request)
	calls  []string
	tokens []string
}

func newFakeConsul(t testing.TB, answer func(http.ResponseWriter, *http.Request)) *fakeConsul {
	f := &fakeConsul{answer: answer}
	f.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		f.mu.Lock()
		f.calls = append(f.calls, r.Method+" "+r.URL.Path)
		f.tokens = append(f.tokens, r.Header.Get("X-Consul-Token"))
		answer := f.answer
		f.mu.Unlock()
		if answer != nil {
			answer(w, r)
		}
	}))
	t.Cleanup(f.Close)
	return f
}

func (f *fakeConsul) say(answer func(http.ResponseWriter, *http.Request)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.answer = answer
}

// saw counts the calls whose method and path hold part.
func (f *fakeConsul) saw(part string) (count int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, call := range f.calls {
		if strings.Contains(call, part) {
			count++
		}
	}
	return count
}

func status500(w http.ResponseWriter, _ *http.Request) {
	http.Error(w, "No cluster leader", http.StatusInternalServerError)
}

// logBuffer is a log that tests read while it is written.
type logBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *logBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *logBuffer) count(part string) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return strings.Count(b.text.String(), part)
}

func (b *logBuffer) logger() hclog.Logger { return hclog.New(&hclog.LoggerOptions{Output: b}) }

func TestOutageIsLoggedOnceForAllEndpoints(t *testing.T) {
	fake := newFakeConsul(t, status500)
	log := new(logBuffer)
	r := newRegistry(t, Config{Address: fake.URL, Logger: log.logger()})
	for i := range 5 {
		if err := r.Register(endpoint(fmt.Sprintf("eg-%d", i)), works("")); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "each was tried twice", func() bool { return fake.saw("register") >= 10 })
	fake.say(nil)
	eventually(t, "each check was updated", func() bool { return fake.saw("check/update") >= 5 })
	if down, up := log.count("Consul does not answer:"), log.count("Consul answers again"); down != 1 || up != 1 {
		t.Errorf("logged going away %d times, coming back %d times", down, up)
	}
}

func TestRefusalNamesThePermission(t *testing.T) {
	fake := newFakeConsul(t, func(w http.ResponseWriter, r *http.Request) {
		http.Error(w, "Permission denied for "+r.Header.Get("X-Consul-Token"), http.StatusForbidden)
	})
	log := new(logBuffer)
	r := newRegistry(t, Config{Address: fake.URL, Token: "s3cret", Logger: log.logger()})
	if err := r.Register(endpoint("eg-1"), works("")); err != nil {
		t.Fatal(err)
	}
	eventually(t, "tried twice", func() bool { return fake.saw("register") >= 2 })
	if log.count(`the token needs service:write on \"egress-proxy\"`) != 1 || log.count("s3cret") != 0 {
		t.Errorf("log:\n%s", log.text.String())
	}
}

func TestTokenFileIsReadAgain(t *testing.T) {
	fake := newFakeConsul(t, nil)
	path := filepath.Join(t.TempDir(), "token")
	write := func(token string) {
		if err := os.WriteFile(path+".new", []byte(token+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(path+".new", path); err != nil {
			t.Fatal(err)
		}
	}
	write("old")
	r := newRegistry(t, Config{Address: fake.URL, TokenFile: path})
	last := func(want string) func() bool {
		return func() bool {
			fake.mu.Lock()
			defer fake.mu.Unlock()
			return len(fake.tokens) > 0 && fake.tokens[len(fake.tokens)-1] == want
		}
	}
	if err := r.Register(endpoint("eg-1"), works("")); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the old token is used", last("old"))
	write("new")
	r.Update("eg-1", fails)
	eventually(t, "the new token is used", last("new"))
}

// A call that hangs holds up neither the caller nor the end of the registry,
// and a deregistration never overtakes the registration before it.
func TestConsulHangs(t *testing.T) {
	release := make(chan struct{})
	fake := newFakeConsul(t, func(_ http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		select {
		case <-release:
		case <-r.Context().Done():
		}
	})
	r := newRegistry(t, Config{Address: fake.URL})
	if err := r.Register(endpoint("eg-1"), works("")); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the registration hangs", func() bool { return fake.saw("register") == 1 })
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := r.Deregister(ctx, "eg-1"); err == nil || !strings.Contains(err.Error(), "goes on in the background") {
		t.Errorf("error %v", err)
	}
	if fake.saw("deregister") != 0 {
		t.Error("the deregistration overtook the registration")
	}
	close(release)
	eventually(t, "it is deregistered in the end", func() bool { return fake.saw("deregister") == 1 && !r.owns("eg-1") })
}

func TestCloseDeregistersNothing(t *testing.T) {
	fake := newFakeConsul(t, nil)
	r := newRegistry(t, Config{Address: fake.URL})
	if err := r.Register(endpoint("eg-1"), works("")); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the check was updated", func() bool { return fake.saw("check/update") == 1 })
	if err := r.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if fake.saw("deregister") != 0 {
		t.Error("closing deregistered the endpoint of a proxy that lives on")
	}
	if err := r.Register(endpoint("eg-2"), works("")); err == nil {
		t.Error("a closed registry accepts endpoints")
	}
}

func BenchmarkIdleEndpoint(b *testing.B) {
	fake := newFakeConsul(b, nil)
	r, err := New(Config{Address: fake.URL, Cluster: "c", Node: "n"})
	if err != nil {
		b.Fatal(err)
	}
	const endpoints = 1000
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	goroutines := runtime.NumGoroutine()
	for i := range endpoints {
		e := endpoint(fmt.Sprintf("eg-%d", i))
		e.TTL = time.Hour
		if err := r.Register(e, works("")); err != nil {
			b.Fatal(err)
		}
	}
	for fake.saw("check/update") < endpoints {
		time.Sleep(10 * time.Millisecond)
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	used := float64(after.HeapInuse+after.StackInuse) - float64(before.HeapInuse+before.StackInuse)
	b.ReportMetric(used/endpoints, "B/endpoint")
	b.ReportMetric(float64(runtime.NumGoroutine()-goroutines)/endpoints, "goroutines/endpoint")
	if err := r.Close(context.Background()); err != nil {
		b.Fatal(err)
	}
}
