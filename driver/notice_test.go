package driver

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/egress-proxies/egress/provider"
)

// TestANoticeIsToldAmongProgress, however close to other events and however many
// there were; one that repeats itself is not.
func TestANoticeIsToldAmongProgress(t *testing.T) {
	var told []string
	now := time.Unix(0, 0)
	p := &progress{emit: func(message string) { told = append(told, message) }, now: func() time.Time { return now }}
	ctx := provider.WithNotices(provider.WithProgress(context.Background(), p.report), p.notice)
	for range maxProgress {
		p.say("milestone")
	}
	provider.Report(ctx, "too soon and too many")
	provider.Notice(ctx, "emulated on %s", "a")
	provider.Notice(ctx, "emulated on %s", "b")
	if len(told) != maxProgress+1 || !slices.Contains(told, "emulated on a") {
		t.Errorf("told %q, want the notice once", told)
	}
}
