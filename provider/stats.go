package provider

import (
	"context"
	"time"
)

// StatsReader is an optional interface: what an instance uses.
type StatsReader interface {
	// Stats reads the counters once.
	Stats(ctx context.Context, ref Ref) (Stats, error)
}

// Stats are counters of one instance.
type Stats struct {
	// At is when they were read.
	At time.Time
	// CPUTime is the time that all of the instance's processors worked since
	// it started. The rate is the caller's to compute from two readings.
	CPUTime time.Duration
	// MemoryBytes is what the instance occupies on its host.
	MemoryBytes uint64
}
