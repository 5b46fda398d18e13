package process

import (
	"context"
	"errors"
	"hash/fnv"
	"os"
	"path/filepath"
	"time"

	"github.com/egress-proxies/egress/provider/process/supervise"
)

// lockFile is in the state directory; no instance can have its name. Each
// instance's lock is one byte of it, so there is nothing to clean up.
const lockFile = ".lock"

// lockPoll is how often a taken lock is tried again: a Create holds it for some
// tens of milliseconds.
const lockPoll = 10 * time.Millisecond

// lock keeps two calls, also of two plugin processes, from working on one
// instance at once.
func (p *Provider) lock(ctx context.Context, name string) (unlock func(), err error) {
	file, err := os.OpenFile(filepath.Join(p.dir, lockFile), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, classify("lock "+name, err)
	}
	hash := fnv.New32a()
	_, _ = hash.Write([]byte(name)) // never fails
	ticker := time.NewTicker(lockPoll)
	defer ticker.Stop()
	for {
		err := supervise.TryLock(file, int64(hash.Sum32()))
		if err == nil {
			return func() { _ = file.Close() }, nil
		}
		if !errors.Is(err, supervise.ErrLocked) {
			_ = file.Close()
			return nil, classify("lock "+name, err)
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			_ = file.Close()
			return nil, ctx.Err()
		}
	}
}
