package kvm

import (
	"context"
	"os"
	"path/filepath"
	"sync"

	"github.com/egress-proxies/egress/provider"
)

// names serialises what changes one instance.
type names struct {
	mu     sync.Mutex // guards locked
	locked map[string]*nameLock
}

type nameLock struct {
	token chan struct{} // holds one value while the name is free
	users int           // guarded by names.mu
}

// lock waits for the name as long as ctx lasts.
func (n *names) lock(ctx context.Context, name string) (unlock func(), err error) {
	n.mu.Lock()
	if n.locked == nil {
		n.locked = make(map[string]*nameLock)
	}
	l, ok := n.locked[name]
	if !ok {
		l = &nameLock{token: make(chan struct{}, 1)}
		l.token <- struct{}{}
		n.locked[name] = l
	}
	l.users++
	n.mu.Unlock()
	leave := func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		if l.users--; l.users == 0 {
			delete(n.locked, name)
		}
	}
	select {
	case <-l.token:
		return func() {
			l.token <- struct{}{}
			leave()
		}, nil
	case <-ctx.Done():
		leave()
		return nil, provider.Transientf("instance %s is busy: %w", name, context.Cause(ctx))
	}
}

// placements remember on which host an instance is being made, from before the
// first step: the next attempt, perhaps of another process, must look there,
// even when that host is the one that can't be reached. An allocation belongs
// to one Nomad node, so a file there is all that is needed.
type placements struct{ dir string }

func (p placements) path(name string) string { return filepath.Join(p.dir, "placement", name) }

// read gives the host's name, or empty when there is none.
func (p placements) read(name string) string {
	if p.dir == "" {
		return ""
	}
	content, err := os.ReadFile(p.path(name))
	if err != nil {
		return ""
	}
	return string(content)
}

// write notes the host. A file that is cut off names no host and is as good as
// none, so it is renamed into place.
func (p placements) write(name, host string) error {
	if p.dir == "" {
		return nil
	}
	path := p.path(name)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return provider.Transientf("state_dir: %w", err)
	}
	if err := os.WriteFile(path+".new", []byte(host), 0o600); err != nil {
		return provider.Transientf("state_dir: %w", err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		return provider.Transientf("state_dir: %w", err)
	}
	return nil
}

// remove forgets. A file that stays costs a look at its host, no more.
func (p placements) remove(name string) {
	if p.dir != "" {
		_ = os.Remove(p.path(name))
	}
}
