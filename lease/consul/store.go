package consul

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/hashicorp/consul/api"
	"github.com/hashicorp/go-hclog"

	"github.com/egress-proxies/egress/lease"
)

// The keys below the prefix.
const (
	keyLeader  = "leader"   // locked by the session of the leader
	keyCommit  = "commit"   // names the last commit
	keyRecords = "records/" // the records
)

const (
	// maxOps is how many operations Consul takes in one transaction (its
	// maxTxnOps, 128 since 1.12.3, 64 before); two of them guard it.
	maxOps = 64
	// maxBytes keeps a transaction, whose values are base64 inside JSON, below
	// Consul's limit of 512 KiB.
	maxBytes = 256 << 10
	// callTimeout bounds one call; retryFor bounds the attempts to learn what
	// became of a transaction. The first attempt has less time: a leader of Consul
	// that hangs is replaced in about that.
	callTimeout  = 5 * time.Second
	firstTimeout = 2 * time.Second
	retryFor     = 15 * time.Second
)

// errDeposed: the lock is no longer this leader's.
var errDeposed = errors.New("another process leads")

// store is the lease.Store of one leadership.
//
// Each transaction checks that the lock is held by the leader's session, and
// replaces the commit key only if it is as the last transaction left it. So a
// deposed leader writes nothing, and a transaction whose answer was lost is
// applied once, however often it is sent and however late it arrives.
type store struct {
	client  *api.Client
	prefix  string
	session string
	logger  hclog.Logger
	// index is the commit key's index after the last transaction. Commit is
	// called by one goroutine at a time.
	index uint64
	// ended is done when the leadership is over.
	ended context.Context
}

var _ lease.Store = (*store)(nil)

// load reads the records and the place of the next commit. The lock must be
// held, so that nobody else writes.
func (s *store) load(ctx context.Context) ([]lease.Record, error) {
	options := (&api.QueryOptions{RequireConsistent: true}).WithContext(ctx)
	commit, _, err := s.client.KV().Get(s.prefix+keyCommit, options)
	if err != nil {
		return nil, fmt.Errorf("read the last commit: %w", err)
	}
	if commit != nil {
		s.index = commit.ModifyIndex
	}
	pairs, _, err := s.client.KV().List(s.prefix+keyRecords, options)
	if err != nil {
		return nil, fmt.Errorf("read the records: %w", err)
	}
	records := make([]lease.Record, len(pairs))
	for i, pair := range pairs {
		records[i] = lease.Record{Key: strings.TrimPrefix(pair.Key, s.prefix+keyRecords), Value: pair.Value}
	}
	return records, nil
}

// Commit writes the changes, in as few transactions as Consul allows. Without
// changes it asks whether the lock is held still.
func (s *store) Commit(ctx context.Context, changes []lease.Change) error {
	if len(changes) == 0 {
		return s.transact(ctx, api.TxnOps{s.held()}, "")
	}
	changes = lastOfEach(changes)
	for {
		part := changes
		size := 0
		for i, c := range changes {
			if size += len(c.Key) + len(c.Value); i == maxOps-2 || i > 0 && size > maxBytes {
				part = changes[:i]
				break
			}
		}
		name := rand.Text()
		if err := s.transact(ctx, s.ops(name, part), name); err != nil {
			return err
		}
		if changes = changes[len(part):]; len(changes) == 0 {
			return nil
		}
	}
}

// lastOfEach drops changes that a later one of the same key overrides.
func lastOfEach(changes []lease.Change) []lease.Change {
	if len(changes) < 2 {
		return changes
	}
	last := make(map[string]int, len(changes))
	for i, c := range changes {
		last[c.Key] = i
	}
	if len(last) == len(changes) {
		return changes
	}
	kept := make([]lease.Change, 0, len(last))
	for i, c := range changes {
		if last[c.Key] == i {
			kept = append(kept, c)
		}
	}
	return kept
}

// transact sends one transaction until it knows what became of it. name is that
// of the commit; empty for one that writes nothing.
func (s *store) transact(ctx context.Context, ops api.TxnOps, name string) error {
	deadline := time.Now().Add(retryFor)
	backoff := 50 * time.Millisecond
	for timeout := firstTimeout; ; timeout = callTimeout {
		err := s.send(ctx, ops, timeout)
		if err == nil {
			return nil
		}
		applied, asked := false, true
		if name != "" {
			applied, asked = s.applied(ctx, name, timeout)
		}
		switch {
		case applied:
			return nil
		case errors.Is(err, errDeposed) && asked:
			return err
		case s.ended.Err() != nil, ctx.Err() != nil, time.Now().After(deadline):
			return fmt.Errorf("store in Consul: %w", err)
		}
		s.logger.Debug("repeat a transaction", "error", err)
		pause(s.ended, backoff)
		backoff = min(2*backoff, time.Second)
	}
}

func (s *store) ops(name string, changes []lease.Change) api.TxnOps {
	ops := make(api.TxnOps, 0, len(changes)+2)
	add := func(op api.KVTxnOp) { ops = append(ops, &api.TxnOp{KV: &op}) }
	ops = append(ops, s.held())
	add(api.KVTxnOp{Verb: api.KVCAS, Key: s.prefix + keyCommit, Value: []byte(name), Index: s.index})
	for _, c := range changes {
		key := s.prefix + keyRecords + c.Key
		if c.Value == nil {
			add(api.KVTxnOp{Verb: api.KVDelete, Key: key})
		} else {
			add(api.KVTxnOp{Verb: api.KVSet, Key: key, Value: c.Value})
		}
	}
	return ops
}

// held checks that the lock is this leader's.
func (s *store) held() *api.TxnOp {
	return &api.TxnOp{KV: &api.KVTxnOp{Verb: api.KVCheckSession, Key: s.prefix + keyLeader, Session: s.session}}
}

// send sends the transaction once. errDeposed says that Consul refused it. One
// that only reads is answered by the servers' leader after it has made sure that
// it leads; see RequireConsistent.
func (s *store) send(ctx context.Context, ops api.TxnOps, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	ok, response, _, err := s.client.Txn().Txn(ops, (&api.QueryOptions{RequireConsistent: true}).WithContext(ctx))
	if err != nil {
		return err
	}
	if !ok {
		var what []string
		for _, e := range response.Errors {
			what = append(what, e.What)
		}
		return fmt.Errorf("%w: %s", errDeposed, strings.Join(what, "; "))
	}
	if len(ops) == 1 {
		return nil
	}
	for _, result := range response.Results {
		if result.KV != nil && result.KV.Key == s.prefix+keyCommit {
			s.index = result.KV.ModifyIndex
			return nil
		}
	}
	return errors.New("the answer of Consul lacks the commit key")
}

// applied says whether the commit of that name is the last one; asked, whether
// Consul could be asked.
func (s *store) applied(ctx context.Context, name string, timeout time.Duration) (applied, asked bool) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	pair, _, err := s.client.KV().Get(s.prefix+keyCommit, (&api.QueryOptions{RequireConsistent: true}).WithContext(ctx))
	if err != nil {
		return false, false
	}
	if pair == nil || string(pair.Value) != name {
		return false, true
	}
	s.index = pair.ModifyIndex
	return true, true
}
