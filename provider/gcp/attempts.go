package gcp

import (
	"strconv"
	"sync"
	"time"

	"github.com/google/uuid"
)

// attempts numbers the machines that one name has had, for the request id of an
// insert. Google answers a request id that it has seen within the last hour
// with the operation of then, and makes nothing: a retry, also that of the next
// plugin process, must use the id again, and a new machine in the place of a
// removed one must not.
type attempts struct {
	mu   sync.Mutex // guards made
	made map[string]attempt
}

type attempt struct {
	number int
	at     time.Time
}

// requestIDsKept is for how long Google remembers a request id, with room for a
// clock of its own.
const requestIDsKept = 2 * time.Hour

// requestID is the UUID of the current attempt, the same in every process that
// has not finished one.
func (a *attempts) requestID(zone, name string) string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return requestID(zone, name, "insert", strconv.Itoa(a.made[name].number))
}

// next says that the current attempt has ended in one way or the other.
func (a *attempts) next(name string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := time.Now()
	if a.made == nil {
		a.made = make(map[string]attempt)
	}
	for other, attempt := range a.made {
		if now.Sub(attempt.at) > requestIDsKept {
			delete(a.made, other)
		}
	}
	a.made[name] = attempt{number: a.made[name].number + 1, at: now}
}

// requestID derives a UUID, which is the only form that Google takes.
func requestID(parts ...string) string {
	id := "egress"
	for _, part := range parts {
		id += "\x00" + part
	}
	return uuid.NewSHA1(uuid.NameSpaceURL, []byte(id)).String()
}
