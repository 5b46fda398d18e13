package e2e_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// runsFull: the disk of a host runs full in the middle of an upload, and one has
// not enough memory. The task's events say so with the numbers, and nothing of
// the attempt stays.
func (c *cuts) runsFull() {
	c.t.Helper()
	began := time.Now()
	tight := filepath.Join(c.host.dir, "pools", "tight")
	s := c.begin("image", "full", map[string]string{"zone": "tight", "restart_attempts": "0"})
	// The host's other users take what is left.
	if err := syscall.Mount("tmpfs", tight, "tmpfs", syscall.MS_REMOUNT, "size=5m"); err != nil {
		c.t.Fatal(err)
	}
	s.release()
	c.event(s.job, "pool tight has", "of 5 MiB free", "MiB of memory are available")
	c.until("nothing is left", func(context.Context) error {
		left, err := os.ReadDir(tight)
		if err == nil && len(left) > 0 {
			err = fmt.Errorf("%d files, of which one is %s", len(left), left[0].Name())
		}
		return err
	})
	c.stop(s.job)
	huge := c.name + "-huge"
	c.machines(huge, map[string]string{"zone": "far", "machine_type": "huge", "count": "1", "restart_attempts": "0"})
	c.event(huge, "memory for 4194304 MiB is missing", "pool default has")
	c.stop(huge)
	c.until("nothing is left", func(context.Context) error { return c.host.holds(nil, nil) })
	c.t.Logf("no room: %.1f s", time.Since(began).Seconds())
}
