package provider

import (
	"context"
	"fmt"
)

type (
	progressKey struct{}
	noticeKey   struct{}
)

// WithProgress makes Report on the returned context, and on those derived from
// it, call report. It must be safe for concurrent use and return quickly.
func WithProgress(ctx context.Context, report func(message string)) context.Context {
	return context.WithValue(ctx, progressKey{}, report)
}

// Report tells whoever started the current call what it is doing: "fetching
// image debian-12: 43%". A provider may report as often as it likes; the
// driver thins the messages out. Without a listener it does nothing.
func Report(ctx context.Context, format string, args ...any) {
	if report, ok := ctx.Value(progressKey{}).(func(string)); ok {
		report(fmt.Sprintf(format, args...))
	}
}

// WithNotices makes Notice on the returned context, and on those derived from
// it, call notice, under the same terms as WithProgress.
func WithNotices(ctx context.Context, notice func(message string)) context.Context {
	return context.WithValue(ctx, noticeKey{}, notice)
}

// Notice tells what a person must hear of and may not be thinned out: that the
// instance is not what was hoped for. A call does so once, if ever. Without a
// listener of its own it is a Report.
func Notice(ctx context.Context, format string, args ...any) {
	if notice, ok := ctx.Value(noticeKey{}).(func(string)); ok {
		notice(fmt.Sprintf(format, args...))
		return
	}
	Report(ctx, format, args...)
}
