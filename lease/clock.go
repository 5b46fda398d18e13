package lease

import "time"

// Clock tells the time. Its times have a monotonic reading, so that setting the
// machine's clock ends no lease.
type Clock interface {
	// Now is the time.
	Now() time.Time
	// Timer fires once after d, until it is stopped.
	Timer(d time.Duration) Timer
}

// Timer is what Clock.Timer makes.
type Timer interface {
	// C gets the time once the timer fires.
	C() <-chan time.Time
	// Stop makes it not fire any more.
	Stop()
}

// SystemClock is the clock of the machine.
type SystemClock struct{}

// Now is time.Now.
func (SystemClock) Now() time.Time { return time.Now() }

// Timer is a time.Timer.
func (SystemClock) Timer(d time.Duration) Timer { return systemTimer{time.NewTimer(d)} }

type systemTimer struct{ t *time.Timer }

func (s systemTimer) C() <-chan time.Time { return s.t.C }
func (s systemTimer) Stop()               { s.t.Stop() }
