package provider

import (
	"context"
	"errors"
	"sync"
	"testing"
)

func TestNameLocks(t *testing.T) {
	var locks NameLocks
	var held, wrong int // guarded by the lock of "a"
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			unlock, err := locks.Lock(t.Context(), "a")
			if err != nil {
				t.Error(err)
				return
			}
			if held++; held != 1 {
				wrong++
			}
			held--
			unlock()
		})
	}
	wg.Wait()
	if wrong != 0 {
		t.Errorf("%d times held by two", wrong)
	}

	unlock, err := locks.Lock(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	cause := errors.New("kill_timeout")
	ended, cancel := context.WithCancelCause(t.Context())
	cancel(cause)
	if _, err := locks.Lock(ended, "a"); !errors.Is(err, cause) || Classify(err) != ErrTransient {
		t.Errorf("a name that is held: %v, want a transient error with the cause", err)
	}
	other, err := locks.Lock(t.Context(), "b")
	if err != nil {
		t.Fatalf("another name: %v", err)
	}
	other()
	unlock()
	if len(locks.locked) != 0 {
		t.Errorf("%d names are kept that nobody uses", len(locks.locked))
	}
}
