package lease

import "time"

// Rules are the numbers that the pool decides by. Zero fields take the
// defaults of DefaultRules.
type Rules struct {
	// DefaultTTL is the length of a lease that does not say.
	DefaultTTL time.Duration
	// MaxTTL bounds what a client may ask for.
	MaxTTL time.Duration
	// MaxCount bounds the leases of one batch.
	MaxCount int
	// MaxWait bounds how long an acquire may queue.
	MaxWait time.Duration
	// MaxWaiting bounds how many acquires may queue.
	MaxWaiting int
	// Blocked is how a (proxy, target) pair cools after a "blocked" report.
	Blocked Backoff
	// Failed is how a proxy cools after a "failed" report.
	Failed Backoff
	// SessionIdle is how long a session is remembered after its last lease.
	SessionIdle time.Duration
	// Skew is what a new leader adds to leases that it takes over, since the
	// clocks of two machines differ.
	Skew time.Duration
	// Scope says how far a target reaches.
	Scope Scope
}

// Backoff is a cooldown that doubles with every further report.
type Backoff struct {
	// Base is the first cooldown.
	Base time.Duration
	// Cap bounds the growth. A pair that stays quiet as long as its last
	// cooldown lasted, after that cooldown, starts at Base again.
	Cap time.Duration
}

// MinTTL is the shortest lease: below it a client can't renew in time over a
// network that loses a packet (the first TCP retransmission takes a second).
const MinTTL = time.Second

// DefaultRules are the defaults of every field.
func DefaultRules() Rules {
	return Rules{
		DefaultTTL:  time.Minute,
		MaxTTL:      time.Hour,
		MaxCount:    100,
		MaxWait:     5 * time.Minute,
		MaxWaiting:  10000,
		Blocked:     Backoff{Base: time.Minute, Cap: 6 * time.Hour},
		Failed:      Backoff{Base: 10 * time.Second, Cap: 10 * time.Minute},
		SessionIdle: 10 * time.Minute,
		Skew:        time.Second,
		Scope:       ScopeHost,
	}
}

func (r Rules) withDefaults() Rules {
	d := DefaultRules()
	for _, f := range []struct {
		value    *time.Duration
		fallback time.Duration
	}{
		{&r.DefaultTTL, d.DefaultTTL}, {&r.MaxTTL, d.MaxTTL}, {&r.MaxWait, d.MaxWait},
		{&r.Blocked.Base, d.Blocked.Base}, {&r.Blocked.Cap, d.Blocked.Cap},
		{&r.Failed.Base, d.Failed.Base}, {&r.Failed.Cap, d.Failed.Cap},
		{&r.SessionIdle, d.SessionIdle}, {&r.Skew, d.Skew},
	} {
		if *f.value == 0 {
			*f.value = f.fallback
		}
	}
	if r.MaxCount == 0 {
		r.MaxCount = d.MaxCount
	}
	if r.MaxWaiting == 0 {
		r.MaxWaiting = d.MaxWaiting
	}
	if r.Scope == "" {
		r.Scope = d.Scope
	}
	r.DefaultTTL = min(r.DefaultTTL, r.MaxTTL)
	return r
}

// after is the cooldown that follows the given number of earlier ones.
func (b Backoff) after(strikes int) time.Duration {
	d := b.Base
	for range strikes {
		if d >= b.Cap/2 {
			return b.Cap
		}
		d *= 2
	}
	return min(d, b.Cap)
}
