package driver

import (
	"context"
	"os"
	"regexp"
	"strconv"
	"sync"
	"time"

	cstructs "github.com/hashicorp/nomad/client/structs"
	"github.com/hashicorp/nomad/plugins/drivers"

	"github.com/egress-proxies/egress/provider"
)

// minStatsInterval protects the providers from an agent that asks for more.
const minStatsInterval = time.Second

// TaskStats streams what a task uses, at once and then at the interval, until
// ctx or the instance ends. CPU and memory are never nil: zero, and not named as
// measured, where the provider has no figures.
func (d *Driver) TaskStats(ctx context.Context, id string, interval time.Duration) (
	<-chan *drivers.TaskResourceUsage, error,
) {
	h := d.store.task(id)
	if h == nil {
		return nil, drivers.ErrTaskNotFound
	}
	ch := make(chan *drivers.TaskResourceUsage)
	err := d.spawn(func() {
		defer close(ch)
		meter := meter{h: h}
		ticker := time.NewTicker(max(interval, minStatsInterval))
		defer ticker.Stop()
		for {
			select {
			case ch <- meter.read(ctx):
			case <-ctx.Done():
				return
			case <-h.done:
				return
			case <-h.ctx.Done():
				return
			}
			select {
			case <-ticker.C:
			case <-ctx.Done():
				return
			case <-h.done:
				return
			case <-h.ctx.Done():
				return
			}
		}
	})
	return ch, err
}

// meter turns counters into rates.
type meter struct {
	h      *handle
	before provider.Stats
}

func (m *meter) read(ctx context.Context) *drivers.TaskResourceUsage {
	usage := &cstructs.ResourceUsage{MemoryStats: &cstructs.MemoryStats{}, CpuStats: &cstructs.CpuStats{}}
	result := &drivers.TaskResourceUsage{ResourceUsage: usage, Timestamp: time.Now().UnixNano()}
	reader, ok := m.h.place.Provider.(provider.StatsReader)
	if !ok {
		return result
	}
	ctx, cancel := context.WithTimeout(ctx, m.h.timing.get)
	defer cancel()
	now, err := reader.Stats(ctx, m.h.ref())
	if err != nil {
		m.h.logger.Debug("no figures of the instance", "instance", m.h.ref().String(), "error", err)
		return result
	}
	usage.MemoryStats.RSS, usage.MemoryStats.Usage = now.MemoryBytes, now.MemoryBytes
	usage.MemoryStats.Measured = []string{"RSS", "Usage"}
	usage.CpuStats.Measured = []string{"Percent", "Total Ticks"}
	if elapsed := now.At.Sub(m.before.At); !m.before.At.IsZero() && elapsed > 0 && now.CPUTime >= m.before.CPUTime {
		cores := float64(now.CPUTime-m.before.CPUTime) / float64(elapsed)
		usage.CpuStats.Percent = 100 * cores
		usage.CpuStats.TotalTicks = cores * coreMHz()
	}
	m.before = now
	result.Timestamp = now.At.UnixNano()
	return result
}

// coreMHz is the speed of one core of this node, the unit of Nomad's ticks; 0
// when it isn't known.
var coreMHz = sync.OnceValue(func() float64 {
	if khz, err := os.ReadFile("/sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq"); err == nil {
		if value, err := strconv.ParseFloat(string(khz[:max(len(khz)-1, 0)]), 64); err == nil {
			return value / 1000
		}
	}
	info, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return 0
	}
	return cpuInfoMHz(info)
})

var cpuInfoSpeed = regexp.MustCompile(`(?m)^cpu MHz\s*:\s*([0-9.]+)$`)

func cpuInfoMHz(info []byte) float64 {
	found := cpuInfoSpeed.FindSubmatch(info)
	if found == nil {
		return 0
	}
	mhz, _ := strconv.ParseFloat(string(found[1]), 64)
	return mhz
}
