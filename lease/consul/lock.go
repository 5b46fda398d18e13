package consul

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/hashicorp/consul/api"
)

// lock tries for the lock whenever it is free. It returns the lock's index.
func (e *Elector) lock(ctx context.Context, session string) (index uint64, err error) {
	value, err := json.Marshal(leaderValue{ID: e.ID, Address: e.Address})
	if err != nil {
		return 0, err
	}
	for moment := 5 * lockDelay; ; {
		pair := &api.KVPair{Key: e.Prefix + keyLeader, Value: value, Session: session}
		call, done := context.WithTimeout(ctx, callTimeout)
		ok, _, err := e.Client.KV().Acquire(pair, (&api.WriteOptions{}).WithContext(call))
		done()
		if err != nil {
			return 0, fmt.Errorf("lock: %w", err)
		}
		if ok {
			return e.locked(ctx, session)
		}
		free, err := e.waitFree(ctx, moment)
		if err != nil {
			return 0, err
		}
		// What is known of the lock may be old.
		if moment = min(2*moment, time.Second); !free {
			moment = 5 * lockDelay
		}
	}
}

// locked gives the lock's index, before which others may have held it.
func (e *Elector) locked(ctx context.Context, session string) (index uint64, err error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	pair, _, err := e.Client.KV().Get(e.Prefix+keyLeader, (&api.QueryOptions{RequireConsistent: true}).WithContext(ctx))
	switch {
	case err != nil:
		return 0, fmt.Errorf("read the lock: %w", err)
	case pair == nil || pair.Session != session:
		return 0, errDeposed
	}
	return pair.ModifyIndex, nil
}

// waitFree returns a moment after the lock is free, or after a while: then one
// tries all the same, since a lock may be delayed.
func (e *Elector) waitFree(ctx context.Context, moment time.Duration) (free bool, err error) {
	timer := time.NewTimer(renewEvery)
	defer timer.Stop()
	for {
		e.mu.Lock()
		held, changed := e.holder != "", e.changed
		e.mu.Unlock()
		if !held {
			pause(ctx, moment)
			return true, ctx.Err()
		}
		select {
		case <-ctx.Done():
			return false, context.Cause(ctx)
		case <-timer.C:
			return false, nil
		case <-changed:
		}
	}
}

// leaderValue is the value of the lock.
type leaderValue struct {
	ID      string `json:"id"`
	Address string `json:"address"`
}

// Follow follows the lock until ctx ends, which is not an error. Any server may
// answer, also with what was a moment ago: a leader of Consul that hangs would
// swallow the question, and the lock is checked wherever it counts.
func (e *Elector) Follow(ctx context.Context) error {
	var index uint64
	for ctx.Err() == nil {
		call, done := context.WithTimeout(ctx, observeWait+observeWait/16+callTimeout)
		options := (&api.QueryOptions{WaitIndex: index, WaitTime: observeWait, AllowStale: true}).WithContext(call)
		pair, meta, err := e.Client.KV().Get(e.Prefix+keyLeader, options)
		done()
		if err != nil {
			index = 0
			pause(ctx, 300*time.Millisecond)
			continue
		}
		index = nextIndex(index, meta.LastIndex)
		var holder string
		var value leaderValue
		var locked uint64
		if pair != nil {
			locked = pair.ModifyIndex
		}
		if pair != nil && pair.Session != "" {
			holder = pair.Session
			if err := json.Unmarshal(pair.Value, &value); err != nil {
				e.Logger.Warn("the leader's address can't be read", "key", pair.Key, "error", err)
			}
		}
		e.know(holder, value.Address, locked)
	}
	return nil
}
