package driver

import (
	"context"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
)

// maxCollecting is how many deletes are retried at once, so that one place that
// hangs doesn't hold up the others.
const maxCollecting = 8

// begin starts what the driver does by itself, once.
func (d *Driver) begin() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.begun || d.closed || d.settings == nil {
		return
	}
	d.begun = true
	d.wg.Go(d.collect)
	d.watchHealth(d.settings)
}

// abandon leaves an instance that could not be deleted to the collector.
func (d *Driver) abandon(s *settings, target record, err error) {
	d.logger.Warn("instance is not deleted yet, trying on in the background", "instance", target.Ref.String(), "error", err)
	target.Orphan = true
	if err := s.records.write(target); err != nil {
		d.logger.Error("no record of an instance that must be deleted", "instance", target.Ref.String(), "error", err)
	}
	select {
	case d.orphaned <- struct{}{}:
	default:
	}
}

// collect deletes what could not be deleted when it should have been, also what
// an earlier process left in that state, until the driver closes.
func (d *Driver) collect() {
	pause := d.timing.collect
	strays := time.NewTicker(d.timing.strays)
	defer strays.Stop()
	for d.ctx.Err() == nil {
		var again <-chan time.Time
		if left := d.collectOnce(); left > 0 {
			again = time.After(pause)
			pause = min(2*pause, d.timing.collectMax)
		}
		select {
		case <-again:
		case <-strays.C:
			if s, err := d.current(); err == nil {
				d.findStrays(d.ctx, s)
			}
		case <-d.orphaned:
			pause = d.timing.collect
			wait(d.ctx, pause)
		case <-d.ctx.Done():
		}
	}
}

// collectOnce tries every orphan once and says how many are left.
func (d *Driver) collectOnce() (left int) {
	s, err := d.current()
	if err != nil {
		return 0
	}
	var failed atomic.Int64
	var group errgroup.Group
	group.SetLimit(maxCollecting)
	for _, found := range s.records.all() {
		if !found.Orphan {
			continue
		}
		group.Go(func() error {
			if !d.collectRecord(s, found) {
				failed.Add(1)
			}
			return nil
		})
	}
	_ = group.Wait() // the functions give no error
	return int(failed.Load())
}

// collectRecord deletes one orphan; it is false when it must be tried again.
func (d *Driver) collectRecord(s *settings, found record) (gone bool) {
	slot, err := parseTaskID(found.TaskID)
	if err != nil {
		d.logger.Error("record of an instance is not valid", "instance", found.Ref.String(), "error", err)
		return true
	}
	ctx, cancel := context.WithTimeout(d.ctx, d.timing.destroy)
	defer cancel()
	ctx, mine := newWork(ctx, slot, found.TaskID, false)
	defer mine.cancel(nil)
	if !d.store.beginCollect(mine) {
		return false
	}
	defer d.store.end(mine)
	// A start may have taken the name over meanwhile.
	if found, ok := s.records.read(found.Ref.Name); !ok || !found.Orphan {
		return true
	}
	if err := d.deleteRecorded(ctx, s, found); err != nil {
		d.logger.Debug("instance still can't be deleted", "instance", found.Ref.String(), "error", err)
		return false
	}
	d.logger.Info("instance deleted that could not be deleted earlier", "instance", found.Ref.String())
	return true
}
