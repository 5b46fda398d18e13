package fingerprint

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/egress-proxies/egress/provider"
	"github.com/egress-proxies/egress/provider/fake"
)

// checks is a provider whose Check is a function.
type checks struct {
	provider.Provider
	check func(context.Context) []provider.Verdict
}

func (c checks) Check(ctx context.Context) []provider.Verdict { return c.check(ctx) }

func source(name string, check func(context.Context) []provider.Verdict) Source {
	return Source{Name: name, Type: "test", Provider: checks{check: check}}
}

func ready(target string) []provider.Verdict {
	return []provider.Verdict{{Target: target, Ready: true, Reason: provider.Reachable}}
}

// run runs a monitor until the test ends, and gives its results.
func run(t *testing.T, sources []Source, options Options) (*Monitor, <-chan Result) {
	m := New(sources, options)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { m.Run(ctx) })
	results := m.Results(ctx)
	t.Cleanup(func() {
		cancel()
		wg.Wait()
		for range results { // It closes, or the test hangs.
		}
	})
	return m, results
}

// next is the next result, which must come within limit.
func next(t *testing.T, results <-chan Result, limit time.Duration) Result {
	t.Helper()
	select {
	case r := <-results:
		return r
	case <-time.After(limit):
		t.Fatalf("no result within %v", limit)
		return Result{}
	}
}

// silent fails when anything is published within d.
func silent(t *testing.T, results <-chan Result, d time.Duration) {
	t.Helper()
	select {
	case r := <-results:
		t.Fatalf("published: %+v", r)
	case <-time.After(d):
	}
}

func TestTenIdleMinutesPublishNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex // guards free
		free, memory := 437.0, 15873.0
		set := func(value float64) {
			mu.Lock()
			defer mu.Unlock()
			free = value
		}
		shrink := func(by float64) float64 {
			mu.Lock()
			defer mu.Unlock()
			free -= by
			return free
		}
		random := rand.New(rand.NewPCG(1, 2))
		idle := source("hv", func(context.Context) []provider.Verdict {
			// An idle host's disks grow by a little, its memory goes up and
			// down, and every check takes another time.
			free := shrink(random.Float64() * 0.05)
			time.Sleep(time.Duration(random.IntN(2000)) * time.Millisecond)
			var verdicts []provider.Verdict
			for _, host := range []string{"b", "a"} {
				verdicts = append(verdicts, provider.Verdict{
					Target: host, Ready: true, Reason: provider.Reachable,
					Latency: time.Duration(random.Int64()),
					Message: fmt.Sprint(random.Int64()),
					Facts: map[string]string{
						"pool_available_gib":   strconv.Itoa(int(free)),
						"memory_available_mib": strconv.Itoa(int(memory + random.Float64()*800 - 400)),
						"libvirt_version":      "9.0.0",
					},
				})
			}
			return verdicts
		})
		_, results := run(t, []Source{idle}, Options{Interval: 5 * time.Second})
		first := next(t, results, 3*time.Second)
		if got := first.Attributes["driver.egress.hv.a.pool_available_gib"]; got != "400" {
			t.Errorf("pool_available_gib = %q, want 400", got)
		}
		silent(t, results, 10*time.Minute)
		set(380) // Now something that matters changes.
		if got := next(t, results, 10*time.Second).Attributes["driver.egress.hv.a.pool_available_gib"]; got != "350" {
			t.Errorf("pool_available_gib = %q, want 350", got)
		}
	})
}

func TestAFaultIsPublishedAndItsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		f := fake.New(fake.Options{Zones: []string{"a", "b"}})
		m, results := run(t, []Source{{Name: "hv", Type: "fake", Provider: f}}, Options{
			Logger: hclog.New(&hclog.LoggerOptions{Output: &log}),
		})
		if got := next(t, results, time.Second); got.Health != Healthy || got.Description != "Healthy" {
			t.Fatalf("first result: %+v", got)
		}
		f.Fail("check/b", -1, fake.Because(provider.PoolNotActive, `start it: virsh pool-start "x"`))
		got := next(t, results, time.Minute)
		if got.Attributes["driver.egress.hv.b.ready"] != "false" || got.Attributes["driver.egress.hv.ready"] != "true" ||
			got.Description != "1 of 2 targets ready; not ready: hv/b (PoolNotActive)" {
			t.Errorf("a pool stopped: %+v", got)
		}
		silent(t, results, 10*time.Minute)
		if down := m.Targets()[1]; down.Ready || !strings.Contains(down.Message, "virsh pool-start") {
			t.Errorf("target: %+v", down)
		}
		f.Fail("check/b", 0, nil)
		if got := next(t, results, time.Minute); got.Description != "Healthy" {
			t.Errorf("the pool runs again: %+v", got)
		}
		silent(t, results, 10*time.Minute)
		lines := strings.Split(strings.TrimSpace(log.String()), "\n")
		if len(lines) != 2 || !strings.Contains(lines[0], "target is not ready") || !strings.Contains(lines[0], "virsh pool-start") ||
			!strings.Contains(lines[1], "target is ready again") {
			t.Errorf("want one line down and one up, got:\n%s", log.String())
		}
	})
}

func TestAHungTargetTimesOutAloneAndComesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := fake.New(fake.Options{Zones: []string{"a", "b"}})
		_, release := f.Hold("check/b")
		_, results := run(t, []Source{{Name: "hv", Type: "fake", Provider: f}}, Options{FirstWait: time.Minute})
		got := next(t, results, DefaultTimeout+time.Second)
		if got.Description != "1 of 2 targets ready; not ready: hv/b (Timeout)" {
			t.Errorf("one zone is held: %+v", got)
		}
		release()
		if got := next(t, results, time.Minute); got.Description != "Healthy" {
			t.Errorf("released: %+v", got)
		}
	})
}

func TestAHungProviderDelaysNobodyAndDoesNotPileUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls atomic.Int32
		answer := make(chan struct{})
		hung := source("hung", func(context.Context) []provider.Verdict {
			if calls.Add(1) == 2 {
				<-answer // Deaf to its context.
			}
			return ready("x")
		})
		fine := source("fine", func(context.Context) []provider.Verdict { return ready("y") })
		_, results := run(t, []Source{hung, fine}, Options{})
		if got := next(t, results, time.Second); got.Description != "Healthy" {
			t.Fatalf("first result: %+v", got)
		}
		got := next(t, results, 2*DefaultInterval+2*DefaultTimeout)
		if got.Description != "1 of 2 targets ready; not ready: hung/x (Timeout)" {
			t.Errorf("hung: %+v", got)
		}
		silent(t, results, time.Hour)
		if got := calls.Load(); got != 2 {
			t.Errorf("%d checks were begun while the second hangs, want 2", got)
		}
		close(answer)
		if got := next(t, results, time.Minute); got.Description != "Healthy" {
			t.Errorf("answered at last: %+v", got)
		}
	})
}

func TestTheFirstResultDoesNotWaitForAHungProvider(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		slow := source("slow", func(context.Context) []provider.Verdict {
			time.Sleep(10 * time.Second)
			return ready("x")
		})
		fine := source("fine", func(context.Context) []provider.Verdict { return ready("y") })
		_, results := run(t, []Source{slow, fine}, Options{Logger: hclog.New(&hclog.LoggerOptions{Output: &log})})
		got := next(t, results, DefaultFirstWait+time.Millisecond)
		if got.Health != Healthy || got.Attributes["driver.egress.slow.ready"] != "false" ||
			got.Attributes["driver.egress.fine.ready"] != "true" {
			t.Errorf("first: %+v", got)
		}
		if targets, told := got.Attributes["driver.egress.slow.targets"]; told {
			t.Errorf("slow.targets = %q before anybody knows", targets)
		}
		got = next(t, results, 8*time.Second)
		if got.Description != "Healthy" || got.Attributes["driver.egress.slow.targets"] != "1" {
			t.Errorf("second: %+v", got)
		}
		if log.Len() > 0 {
			t.Errorf("a provider that is only slow at first is logged: %s", log.String())
		}
	})
}

func TestAProviderThatNeverAnswersIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		var calls atomic.Int32
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		hung := source("hung", func(context.Context) []provider.Verdict {
			calls.Add(1)
			<-ctx.Done()
			return nil
		})
		_, results := run(t, []Source{hung}, Options{Logger: hclog.New(&hclog.LoggerOptions{Output: &log})})
		if got := next(t, results, 4*time.Second); got.Health != Unhealthy || got.Description != "no target is ready: hung (Timeout)" {
			t.Errorf("%+v", got)
		}
		silent(t, results, time.Hour)
		if lines := strings.Count(log.String(), "\n"); lines != 1 || !strings.Contains(log.String(), "provider=hung") {
			t.Errorf("want one line, got:\n%s", log.String())
		}
	})
}

func TestEachReaderIsToldAllAndItsOwnRetractions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := fake.New(fake.Options{Zones: []string{"a"}})
		f.SetFacts("a", map[string]string{"pool_available_gib": "40"})
		m, early := run(t, []Source{{Name: "hv", Type: "fake", Provider: f}}, Options{})
		next(t, early, time.Second)
		f.SetFacts("a", nil)
		const key = "driver.egress.hv.a.pool_available_gib"
		if value, told := next(t, early, time.Minute).Attributes[key]; !told || value != "" {
			t.Errorf("to a node that had it: %q, %v, want it retracted", value, told)
		}
		ctx, cancel := context.WithCancel(t.Context())
		late := m.Results(ctx)
		got := next(t, late, time.Second)
		if value, told := got.Attributes[key]; told {
			t.Errorf("to a node that never had it: %q, want nothing", value)
		}
		if got.Attributes["driver.egress.hv.a.ready"] != "true" {
			t.Errorf("the late reader isn't told all: %+v", got)
		}
		cancel()
		if _, open := <-late; open {
			t.Error("the channel is open after its context ended")
		}
	})
}

func TestAProviderWithoutChecksIsReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, results := run(t, []Source{{Name: "plain", Type: "test", Provider: struct{ provider.Provider }{}}}, Options{})
		got := next(t, results, time.Second)
		if got.Health != Healthy || got.Attributes["driver.egress.plain.targets_ready"] != "1" {
			t.Errorf("%+v", got)
		}
	})
}

// TestAThousandRoundsLeaveNothingBehind: 100 hosts of which 5 are hung for good.
func TestAThousandRoundsLeaveNothingBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var begun atomic.Int32
		sources := hundredHosts(t, &begun)
		m := New(sources, Options{Timeout: time.Second})
		rounds := func(n int) (goroutines int, heap uint64) {
			for range n {
				m.Once(t.Context())
			}
			synctest.Wait()
			runtime.GC()
			var stats runtime.MemStats
			runtime.ReadMemStats(&stats)
			return runtime.NumGoroutine(), stats.HeapAlloc
		}
		goroutines, heap := rounds(20)
		after, heapAfter := rounds(1000)
		t.Logf("goroutines %d, then %d; heap %d KiB, then %d KiB", goroutines, after, heap>>10, heapAfter>>10)
		if after > goroutines {
			t.Errorf("%d goroutines after 1,000 rounds, %d before", after, goroutines)
		}
		if heapAfter > heap+heap/10+256<<10 {
			t.Errorf("%d KiB of heap after 1,000 rounds, %d before", heapAfter>>10, heap>>10)
		}
		if got := begun.Load(); got != 5 {
			t.Errorf("%d checks of hung hosts were begun, want one for each of 5", got)
		}
	})
}

// hundredHosts are 100 providers of which 5 hang, deaf to their contexts.
func hundredHosts(t testing.TB, begun *atomic.Int32) []Source {
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	var sources []Source
	for i := range 100 {
		name := fmt.Sprintf("hv%02d", i)
		check := func(context.Context) []provider.Verdict { return ready(name) }
		if i%20 == 7 {
			check = func(context.Context) []provider.Verdict {
				begun.Add(1)
				<-ctx.Done()
				return nil
			}
		}
		sources = append(sources, source(name, check))
	}
	return sources
}

// BenchmarkRoundWithHungHosts reports how much longer than the timeout a round
// over 100 hosts takes of which 5 hang: at most 1.1.
func BenchmarkRoundWithHungHosts(b *testing.B) {
	const timeout = 200 * time.Millisecond
	var begun atomic.Int32
	m := New(hundredHosts(b, &begun), Options{Timeout: timeout})
	for b.Loop() {
		m.Once(b.Context())
	}
	ratio := float64(b.Elapsed()) / float64(b.N) / float64(timeout)
	b.ReportMetric(ratio, "×timeout")
	b.ReportMetric(float64(runtime.NumGoroutine()), "goroutines")
	if ratio > 1.1 {
		b.Errorf("a round takes %.2f of the timeout, want at most 1.1", ratio)
	}
}
