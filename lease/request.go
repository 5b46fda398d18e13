package lease

import (
	"fmt"
	"time"
	"unicode"
)

// Ask is what a client sends to acquire leases, before it is checked.
type Ask struct {
	// Selector is the text of the selector.
	Selector string
	// Target is a URL or a host.
	Target string
	// TTL is the length; zero is the default.
	TTL time.Duration
	// Session is the name of a session.
	Session string
	// Mode is "soft", "hard" or empty for soft.
	Mode string
	// Count is how many leases; zero is one.
	Count int
	// Partial accepts fewer.
	Partial bool
	// Client is a name for people.
	Client string
	// Key is the idempotency key.
	Key string
	// Wait is how long to queue.
	Wait time.Duration
}

// maxName bounds the names that clients choose: they are stored with each lease
// and shown in tables.
const maxName = 128

// NewRequest checks what a client asks. Its error is a *FieldError.
func (r Rules) NewRequest(ask Ask) (*Request, error) {
	r = r.withDefaults()
	selector, err := ParseSelector(ask.Selector)
	if err != nil {
		return nil, err
	}
	target, err := NormalizeTarget(ask.Target, r.Scope)
	if err != nil {
		return nil, err
	}
	ttl, err := r.CheckTTL(ask.TTL)
	if err != nil {
		return nil, err
	}
	req := &Request{
		Selector: selector, Target: target, TTL: ttl, Session: ask.Session, Count: max(ask.Count, 1),
		Partial: ask.Partial, Client: ask.Client, Key: ask.Key, Wait: ask.Wait,
	}
	for _, name := range []struct{ field, value string }{
		{"session", ask.Session}, {"client", ask.Client}, {"Idempotency-Key", ask.Key},
	} {
		if err := CheckText(name.field, name.value, maxName); err != nil {
			return nil, err
		}
	}
	switch {
	case ask.Mode != "" && ask.Mode != string(Soft) && ask.Mode != string(Hard):
		return nil, &FieldError{"session_mode", ask.Mode, -1, `want "soft" or "hard"`}
	case ask.Mode != "" && ask.Session == "":
		return nil, &FieldError{"session_mode", ask.Mode, -1, "want a session beside it"}
	case ask.Session != "":
		req.Mode = Soft
		if ask.Mode != "" {
			req.Mode = SessionMode(ask.Mode)
		}
	}
	if ask.Count < 0 || ask.Count > r.MaxCount {
		return nil, &FieldError{"count", fmt.Sprint(ask.Count), -1, fmt.Sprintf("want 1 to %d", r.MaxCount)}
	}
	if ask.Wait < 0 || ask.Wait > r.MaxWait {
		return nil, &FieldError{"wait", ask.Wait.String(), -1, fmt.Sprintf("want at most %s", r.MaxWait)}
	}
	return req, nil
}

// CheckTTL gives the default for zero, and refuses what is out of bounds.
func (r Rules) CheckTTL(ttl time.Duration) (time.Duration, error) {
	r = r.withDefaults()
	if ttl == 0 {
		return r.DefaultTTL, nil
	}
	if ttl < MinTTL || ttl > r.MaxTTL {
		return 0, &FieldError{"ttl", ttl.String(), -1, fmt.Sprintf("want %s to %s", MinTTL, r.MaxTTL)}
	}
	return ttl, nil
}

// CheckText refuses names that would break a table, a log line or a key.
func CheckText(field, value string, limit int) error {
	if len(value) > limit {
		return &FieldError{field, value, limit, fmt.Sprintf("want at most %d bytes", limit)}
	}
	for i, r := range value {
		if r == unicode.ReplacementChar || !unicode.IsPrint(r) {
			return &FieldError{field, value, i, "want printable characters"}
		}
	}
	return nil
}
