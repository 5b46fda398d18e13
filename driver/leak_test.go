package driver

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"go.uber.org/goleak"

	"github.com/egress-proxies/egress/driver/probe"
	"github.com/egress-proxies/egress/provider/fake"
)

// Case 10.
func TestTwentyCyclesLeaveNothing(t *testing.T) {
	before := goleak.IgnoreCurrent()
	t.Run("cycles", func(t *testing.T) {
		h := newHarness(t)
		for cycle := range 20 {
			cfg := h.task(fmt.Sprint(cycle), nil)
			h.start(cfg)
			ch, err := h.WaitTask(t.Context(), cfg.ID)
			if err != nil {
				t.Fatal(err)
			}
			if err := h.StopTask(cfg.ID, time.Minute, ""); err != nil {
				t.Fatal(err)
			}
			<-ch
			if err := h.DestroyTask(cfg.ID, false); err != nil {
				t.Fatal(err)
			}
		}
		h.nothingLeft()
		h.store.mu.Lock()
		defer h.store.mu.Unlock()
		if len(h.store.tasks)+len(h.store.slots)+len(h.store.working) != 0 {
			t.Error("the store still has something")
		}
	})
	goleak.VerifyNone(t, before)
}

// The plugin is closed at every step of a start: no goroutine outlives it.
func TestCloseAtEveryStepLeavesNoGoroutine(t *testing.T) {
	steps := append([]fake.Step{fake.StepAddress, fake.StepDelete, fake.StepStop}, fake.CreateSteps...)
	for _, step := range steps {
		before := goleak.IgnoreCurrent()
		t.Run(string(step), func(t *testing.T) {
			h := newHarness(t)
			reached, release := h.parts.provider.Hold(step)
			defer release()
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				cfg := h.task("1", nil)
				_, _, _ = h.StartTask(cfg)
				_ = h.StopTask(cfg.ID, time.Minute, "")
				_ = h.DestroyTask(cfg.ID, true)
			}()
			<-reached
			if err := h.Close(context.Background()); err != nil {
				t.Error(err)
			}
			<-ended
			if _, _, err := h.StartTask(h.task("2", nil)); err == nil {
				t.Error("a closed plugin started a task")
			}
		})
		goleak.VerifyNone(t, before)
	}
}

// idleProber waits as the real one does, and finds every proxy working.
type idleProber struct{ *probe.Prober }

func (idleProber) Await(context.Context, func(probe.Verdict)) (probe.Verdict, error) {
	return works, nil
}

// BenchmarkIdleTask says what a task that only runs costs the plugin: its
// observer, its log pump and its probe loop, with the fake provider's own watch.
func BenchmarkIdleTask(b *testing.B) {
	h := startHarness(b, newParts(b), strings.Replace(testConfig, `probe {`, `probe { interval = "1h"`, 1))
	h.logger = hclog.NewNullLogger()
	h.newProber = func(config probe.Config, proxy probe.Proxy) (prober, error) {
		made, err := probe.New(config, proxy)
		return idleProber{made}, err
	}
	console := filepath.Join(b.TempDir(), "stdout")
	if err := os.WriteFile(console, nil, 0o600); err != nil {
		b.Fatal(err)
	}
	start := func(i int) {
		cfg := h.taskOf(fmt.Sprintf("%08d-2a4b-4f1e-9c55-0d7a5f3e1b11", i), "1", nil)
		cfg.StdoutPath = console
		h.start(cfg)
	}
	start(-1)
	bytes, goroutines := inUse(), runtime.NumGoroutine()
	b.ResetTimer()
	for i := range b.N {
		start(i)
	}
	b.StopTimer()
	b.ReportMetric(float64(inUse()-bytes)/float64(b.N), "bytes/task")
	b.ReportMetric(float64(runtime.NumGoroutine()-goroutines)/float64(b.N), "goroutines/task")
}

// inUse is the memory of the heap and of the stacks.
func inUse() uint64 {
	runtime.GC()
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return stats.HeapAlloc + stats.StackInuse
}
