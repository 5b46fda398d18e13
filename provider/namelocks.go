package provider

import (
	"context"
	"sync"
)

// NameLocks serialises what changes one instance, for providers whose place
// would let two calls of one process work on it at once. The zero value is
// ready for use.
type NameLocks struct {
	mu     sync.Mutex // guards locked
	locked map[string]*nameLock
}

type nameLock struct {
	token chan struct{} // holds one value while the name is free
	users int           // guarded by NameLocks.mu
}

// Lock waits for the name as long as ctx lasts. The error is ErrTransient and
// has the cause of ctx's end.
func (n *NameLocks) Lock(ctx context.Context, name string) (unlock func(), err error) {
	l := n.join(name)
	select {
	case <-l.token:
		return func() {
			l.token <- struct{}{}
			n.leave(name, l)
		}, nil
	case <-ctx.Done():
		n.leave(name, l)
		return nil, Transientf("instance %s is busy: %w", name, context.Cause(ctx))
	}
}

func (n *NameLocks) join(name string) *nameLock {
	n.mu.Lock()
	defer n.mu.Unlock()
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
	return l
}

// leave forgets a name that nobody holds or waits for.
func (n *NameLocks) leave(name string, l *nameLock) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if l.users--; l.users == 0 {
		delete(n.locked, name)
	}
}
