package command

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/egress-proxies/egress/provider/kvm/image"
)

// stock is what one place has.
type stock struct {
	place  place
	images []image.Stored
	err    error
}

func listCommand(load Load) *cobra.Command {
	var f flags
	command := &cobra.Command{
		Use:   "list",
		Short: "Show the images that each hypervisor has, and what uses them",
		Long: `Show the images in the pool of each hypervisor.

  IMAGE     the entry of the configuration whose image this is, as it is published
            now; - for one that no entry has any more, or that a task named by
            URL or path
  DIGEST    the start of the SHA-256 of the file as it was published
  SIZE      what a guest sees
  ON DISK   what it occupies on the host
  USED BY   how many disks stand on it
  LAST USED when a start or a warm last wanted it, to within an hour
  STATE     ready; partial: being fetched, or left behind when a fetch broke off;
            missing: an entry whose image is not there yet

To find the images of entries without a digest, their file is read or their
server is asked.`,
		Example: `  egress images list
  egress images list --config new-hypervisor.hcl --target a
  egress images list --json | jq '[.[] | .physical_bytes] | add'`,
		Args:         cobra.NoArgs,
		SilenceUsage: true,
		RunE:         func(command *cobra.Command, _ []string) error { return list(command, load, f) },
	}
	f.add(command)
	return command
}

func list(command *cobra.Command, load Load, f flags) error {
	places, closeAll, err := f.open(command, load)
	if err != nil {
		return err
	}
	defer closeAll()
	ctx := command.Context()
	var entries entryIDs
	var naming sync.WaitGroup
	naming.Go(func() { entries = identify(ctx, places, f.timeout) })
	stocks := look(ctx, places, f.timeout)
	naming.Wait()
	for _, problem := range entries.problems {
		command.PrintErrln("not recognised:", problem)
	}
	rows, failed := rowsOf(stocks, entries), 0
	for _, s := range stocks {
		if s.err != nil {
			failed++
			command.PrintErrf("not looked at: %s: %v\n", s.place, s.err)
		}
	}
	show := listTable
	if f.asJSON {
		show = func(w io.Writer, rows []row) error { return asJSON(w, rows) }
	}
	if err := show(command.OutOrStdout(), rows); err != nil {
		return err
	}
	return ended(ctx, failed, len(stocks), "hypervisors could not be looked at")
}

// look lists every place at once.
func look(ctx context.Context, places []place, timeout time.Duration) []stock {
	stocks := make([]stock, len(places))
	var looking sync.WaitGroup
	for i, p := range places {
		looking.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, timeout)
			defer cancel()
			stored, err := image.List(ctx, p.target)
			stocks[i] = stock{place: p, images: stored, err: err}
		})
	}
	looking.Wait()
	return stocks
}

// entryIDs are the ids by which the entries' images are known.
type entryIDs struct {
	ids      map[string]map[string]string // by provider and entry
	problems []string
}

// names are the entries of a provider that have an image.
func (e entryIDs) names(provider string, stored image.Stored) []string {
	var names []string
	for _, name := range slices.Sorted(maps.Keys(e.ids[provider])) {
		if stored.Holds(e.ids[provider][name]) {
			names = append(names, name)
		}
	}
	return names
}

// identify asks for every entry of every provider what its image is known by.
func identify(ctx context.Context, places []place, timeout time.Duration) entryIDs {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	found := entryIDs{ids: map[string]map[string]string{}}
	var mu sync.Mutex // guards found
	var asking sync.WaitGroup
	for _, p := range places {
		if found.ids[p.provider] != nil {
			continue
		}
		ids := map[string]string{}
		found.ids[p.provider] = ids
		cache := p.keeper.NewCache()
		defer func() { _ = cache.Close() }()
		for name := range p.keeper.Images().Entries {
			asking.Go(func() {
				var id string
				source, err := p.keeper.Images().Resolve(name, "")
				if err == nil {
					id, err = cache.Identify(ctx, source)
				}
				mu.Lock()
				defer mu.Unlock()
				ids[name] = id
				if err != nil {
					found.problems = append(found.problems, fmt.Sprintf("image %s: %v", name, err))
				}
			})
		}
	}
	asking.Wait()
	slices.Sort(found.problems)
	return found
}
