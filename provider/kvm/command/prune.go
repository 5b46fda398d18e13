package command

import (
	"context"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/egress-proxies/egress/provider/kvm/image"
)

// defaultOlderThan keeps the image of a fleet that is being replaced, and one
// that a job keeps warm.
const defaultOlderThan = 24 * time.Hour

func pruneCommand(load Load) *cobra.Command {
	var f flags
	var dryRun, all bool
	var olderThan time.Duration
	command := &cobra.Command{
		Use:   "prune",
		Short: "Remove the images that nothing uses",
		Long: `Remove the images on which no disk stands and which nobody wanted for a while,
and what is left of fetches that broke off. It never touches

  - an image that a disk in the same pool stands on, whoever made the disk,
  - one that a start or egress images warm wanted within --older-than,
  - one that is being fetched,
  - any other file of the pool.

A start that wants an image which was pruned fetches it again. Look first with
--dry-run.`,
		Example: `  egress images prune --dry-run --all
  egress images prune --older-than 168h
  egress images prune --target a --json`,
		Args:         cobra.NoArgs,
		SilenceUsage: true,
		RunE: func(command *cobra.Command, _ []string) error {
			return prune(command, load, f, pruning{dryRun: dryRun, all: all, olderThan: olderThan})
		},
	}
	f.add(command)
	command.Flags().BoolVarP(&dryRun, "dry-run", "n", false, "only say what would be removed")
	command.Flags().BoolVarP(&all, "all", "a", false, "also print what is kept, and why")
	command.Flags().DurationVar(&olderThan, "older-than", defaultOlderThan, "keep what was wanted within this time")
	return command
}

type pruning struct {
	dryRun, all bool
	olderThan   time.Duration
}

func prune(command *cobra.Command, load Load, f flags, o pruning) error {
	if o.olderThan < 0 {
		return impossible(fmt.Errorf("--older-than %v: want 0 or more", o.olderThan))
	}
	places, closeAll, err := f.open(command, load)
	if err != nil {
		return err
	}
	defer closeAll()
	ctx := command.Context()
	entries := identify(ctx, places, f.timeout)
	results := make([][]row, len(places))
	errs := make([]error, len(places))
	var working sync.WaitGroup
	for i, p := range places {
		working.Go(func() { results[i], errs[i] = pruneOne(ctx, p, entries, f.timeout, o) })
	}
	working.Wait()
	rows, failed := []row{}, 0
	for i := range places {
		rows = append(rows, results[i]...)
		if errs[i] != nil {
			failed++
			command.PrintErrf("not pruned: %s: %v\n", places[i], errs[i])
		}
	}
	show := func(w io.Writer, rows []row) error { return pruneTable(w, rows, o) }
	if f.asJSON {
		show = func(w io.Writer, rows []row) error { return asJSON(w, rows) }
	}
	if err := show(command.OutOrStdout(), rows); err != nil {
		return err
	}
	return ended(ctx, failed, len(places), "hypervisors could not be pruned")
}

// The words of row.Action.
const (
	actionRemove = "would remove"
	actionGone   = "removed"
	actionKeep   = "keep"
)

// removeTimeout bounds the removals on one host: a large file takes a disk a while.
const removeTimeout = 10 * time.Minute

// pruneOne prunes one place and tells of each image there.
func pruneOne(ctx context.Context, p place, entries entryIDs, timeout time.Duration, o pruning) ([]row, error) {
	listing, done := context.WithTimeout(ctx, timeout)
	defer done()
	stored, err := image.List(listing, p.target)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, removeTimeout)
	defer cancel()
	now := time.Now()
	gone := map[string]bool{}
	if !o.dryRun {
		var removed []image.Stored
		removed, err = image.Prune(ctx, p.target, now, o.olderThan)
		for _, s := range removed {
			gone[s.Volume.Name] = true
		}
	}
	rows := make([]row, 0, len(stored))
	for _, s := range stored {
		r := rowOf(p, s, entries.names(p.provider, s))
		r.Why = s.Kept(now, o.olderThan)
		switch {
		case gone[s.Volume.Name]:
			r.Action, r.Why = actionGone, "unused"
		case r.Why != "":
			r.Action = actionKeep
		case o.dryRun:
			r.Action, r.Why = actionRemove, "unused"
		default:
			r.Action, r.Why = actionKeep, "it came into use meanwhile"
			if err != nil {
				r.Why = "not reached"
			}
		}
		rows = append(rows, r)
	}
	return rows, err
}

func pruneTable(w io.Writer, rows []row, o pruning) error {
	var shown []row
	var freed int64
	count := 0
	for _, r := range rows {
		if r.Action != actionKeep {
			count++
			freed += r.PhysicalBytes
		}
		if o.all || r.Action != actionKeep {
			shown = append(shown, r)
		}
	}
	if len(shown) > 0 {
		err := table(w, "ACTION\tPROVIDER\tTARGET\tIMAGE\tDIGEST\tON DISK\tLAST USED\tWHY", shown, func(r row) []string {
			return []string{r.Action, r.Provider, r.Target, r.names(), r.shortDigest(), size(r.PhysicalBytes), when(r.UsedAt), r.Why}
		})
		if err != nil {
			return err
		}
	}
	summary := fmt.Sprintf("%d of %d images removed, %s freed.", count, len(rows), size(freed))
	switch {
	case count == 0:
		summary = fmt.Sprintf("Nothing to remove: %d images looked at.", len(rows))
	case o.dryRun:
		summary = fmt.Sprintf("%d of %d images would be removed, %s freed.", count, len(rows), size(freed))
	}
	_, err := fmt.Fprintln(w, summary)
	return err
}
