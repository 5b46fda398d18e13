package lease

import "context"

// Store keeps what the pool must not forget. A store belongs to one leader; when
// it can't be sure any more that it still does, Commit fails.
type Store interface {
	// Commit writes the changes, in their order. When it returns nil they are
	// durable. An error means that the caller must give up its leadership: it
	// can't know what was written. It retries what can be retried by itself.
	// Without changes it confirms that the caller leads still.
	Commit(ctx context.Context, changes []Change) error
}

// Change is a record to write, or to delete.
type Change struct {
	// Key is the record's key: kind, slash, name.
	Key string
	// Value is the record; nil deletes it.
	Value []byte
}

// Record is a stored record.
type Record struct {
	// Key is as in Change.
	Key string
	// Value is what was written.
	Value []byte
}

// TakeChanges hands out the changes since the last call, in their order.
func (p *Pool) TakeChanges() []Change {
	changes := p.changes
	p.changes = nil
	return changes
}
