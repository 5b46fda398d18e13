package cluster

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestStartAgainAfterTheKnownCrash, once, and after no other one.
func TestStartAgainAfterTheKnownCrash(t *testing.T) {
	const crash = `echo "net/http.(*Server).Serve(0x0, {0x1})"; exit 2`
	for name, test := range map[string]struct {
		script string
		starts int
		fails  bool
	}{
		"known, then good": {`[ -e once ] && touch up && exec sleep 1000; touch once; ` + crash, 2, false},
		"known for good":   {crash, 2, true},
		"another":          {`echo "panic: out of luck"; exit 2`, 1, true},
		"good":             {`touch up; exec sleep 1000`, 1, false},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			// What an earlier start said is over.
			if err := os.WriteFile(filepath.Join(dir, "agent.log"), []byte(knownCrash+"\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			a := &agent{name: "agent", bin: "/bin/sh", args: []string{"-c", "echo start >> starts; " + test.script}, dir: dir}
			if err := a.start(); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := a.Kill(); err != nil {
					t.Error(err)
				}
			})
			err := a.ready(t.Context(), "it is up", func(context.Context) error {
				_, err := os.Stat(filepath.Join(dir, "up"))
				return err
			})
			starts, readErr := os.ReadFile(filepath.Join(dir, "starts"))
			if n := strings.Count(string(starts), "start"); n != test.starts || (err != nil) != test.fails || readErr != nil {
				t.Errorf("%d starts, %v, want %d and a failure: %v (%v)", n, err, test.starts, test.fails, readErr)
			}
			if test.fails && (err == nil || errors.Is(err, context.DeadlineExceeded)) {
				t.Errorf("%v, want it told at once that the agent exited", err)
			}
		})
	}
}
