package command

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/egress-proxies/egress/provider"
	"github.com/egress-proxies/egress/provider/kvm/image"
)

// warming is what the flags of warm say.
type warming struct {
	flags
	all          bool
	every, splay time.Duration
}

func warmCommand(load Load) *cobra.Command {
	var w warming
	command := &cobra.Command{
		Use:   "warm IMAGE…",
		Short: "Fetch images onto every hypervisor before the first start does",
		Long: `Fetch images onto the hypervisors, so that no start has to wait for them. IMAGE is
what a task's image would be: an entry of the configuration, or an http(s) URL. Each
is downloaded once and sent to all hypervisors at the same time; a hypervisor that
has it already is not sent anything.

An image that was warmed counts as used: egress images prune leaves it alone for
its --older-than. With --every the command goes on, looks again at that interval
whether the images have changed or went missing, and ends with Ctrl-C: egress job
run warm runs it on every Nomad node.

Where several nodes share a hypervisor, one that finds another node sending an
image waits for it.`,
		Example: `  egress images warm debian-12
  egress images warm debian-12 --target a --target b
  egress images warm --all --every 1h`,
		SilenceUsage: true,
		RunE:         func(command *cobra.Command, images []string) error { return warm(command, load, images, w) },
	}
	w.add(command)
	command.Flags().BoolVarP(&w.all, "all", "a", false, "every image of the configuration")
	command.Flags().DurationVar(&w.every, "every", 0, "look again at this interval, until Ctrl-C")
	command.Flags().DurationVar(&w.splay, "splay", 0, "wait for a random time of up to this long first, so that nodes don't all begin at once")
	return command
}

// errand is one image for one place.
type errand struct {
	place  place
	cache  *image.Cache
	source image.Source
}

// minEvery keeps a typo from asking the servers of the images without a pause.
const minEvery = time.Second

func warm(command *cobra.Command, load Load, images []string, w warming) error {
	switch {
	case len(images) == 0 && !w.all:
		return impossible(errors.New("no image: name some (egress images list shows them), or --all for every one of the configuration"))
	case len(images) > 0 && w.all:
		return impossible(errors.New("--all: want either that or the names of images"))
	case w.every != 0 && w.every < minEvery, w.splay < 0:
		return impossible(fmt.Errorf("--every %v, --splay %v: want at least %v, and 0 or more", w.every, w.splay, minEvery))
	}
	places, closeAll, err := w.open(command, load)
	if err != nil {
		return err
	}
	defer closeAll()
	errands, closeCaches, err := plan(places, images, w.all)
	if err != nil {
		return impossible(err)
	}
	defer closeCaches()
	ctx := command.Context()
	say := teller{out: command.OutOrStdout(), asJSON: w.asJSON}
	if pause(ctx, rand.N(w.splay+1)) != nil {
		return stopped(ctx, w)
	}
	for {
		failed := round(ctx, errands, w.timeout, &say)
		if ctx.Err() != nil {
			return stopped(ctx, w)
		}
		if w.every == 0 {
			return ended(ctx, failed, len(errands), "images could not be warmed")
		}
		if pause(ctx, w.every) != nil {
			return stopped(ctx, w)
		}
	}
}

// stopped is how a command ends at Ctrl-C. One with --every is meant to.
func stopped(ctx context.Context, w warming) error {
	if w.every > 0 {
		return nil
	}
	return ended(ctx, 0, 0, "")
}

func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// plan finds what each name means to each provider. A name must mean something
// to one of them.
func plan(places []place, names []string, all bool) (errands []errand, closeAll func(), err error) {
	caches := map[string]*image.Cache{}
	closeAll = func() {
		for _, cache := range caches {
			_ = cache.Close() // it removes what is half written, as far as it can
		}
	}
	understood := map[string]bool{}
	refusals := map[string]error{}
	for _, p := range places {
		if caches[p.provider] == nil {
			caches[p.provider] = p.keeper.NewCache()
		}
		wanted := names
		if all {
			wanted = slices.Sorted(maps.Keys(p.keeper.Images().Entries))
		}
		for _, name := range wanted {
			source, err := p.keeper.Images().Resolve(name, "")
			if err != nil {
				refusals[name] = err
				continue
			}
			understood[name] = true
			errands = append(errands, errand{place: p, cache: caches[p.provider], source: source})
		}
	}
	for _, name := range slices.Sorted(maps.Keys(refusals)) {
		if !understood[name] {
			closeAll()
			return nil, nil, refusals[name]
		}
	}
	if len(errands) == 0 {
		closeAll()
		return nil, nil, errors.New(`--all: the configuration has no image: add a block such as image "debian-12" { url = "https://…" }`)
	}
	return errands, closeAll, nil
}

// round does all errands at once and gives how many failed.
func round(ctx context.Context, errands []errand, timeout time.Duration, say *teller) (failed int) {
	errs := make([]error, len(errands))
	var working sync.WaitGroup
	for i, e := range errands {
		working.Go(func() { errs[i] = e.run(ctx, timeout, say) })
	}
	working.Wait()
	for _, err := range errs {
		if err != nil {
			failed++
		}
	}
	return failed
}

// run brings the image to the place and tells how it went.
func (e errand) run(ctx context.Context, timeout time.Duration, say *teller) error {
	begin := time.Now()
	r := result{Provider: e.place.provider, Target: e.place.target.String(), Image: e.source.String()}
	base, present, err := e.bring(provider.WithProgress(ctx, func(message string) { say.progress(e.place, message) }), timeout)
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case err != nil:
		r.Result, r.Error = "failed", err.Error()
	case present:
		r.Result, r.Digest = "present", base.Digest
	default:
		r.Result, r.Digest = "fetched", base.Digest
	}
	r.Seconds = time.Since(begin).Round(time.Millisecond).Seconds()
	return errors.Join(err, say.result(e.place, r))
}

// lookAgain is the pause between two looks at what another node is sending.
const lookAgain = 2 * time.Second

// bring fetches what is missing, and leaves what another node is sending to it.
func (e errand) bring(ctx context.Context, timeout time.Duration) (base image.Base, present bool, err error) {
	id, err := e.identify(ctx, timeout)
	if err != nil {
		return image.Base{}, false, fmt.Errorf("image %s: %w", e.source, err)
	}
	if id == "" {
		return image.Base{}, false, fmt.Errorf(
			"image %s: its server gives neither an ETag nor a date, so that every start fetches it anew: give it an entry with a sha256", e.source)
	}
	for {
		looking, cancel := context.WithTimeout(ctx, timeout)
		complete, underway, err := image.Has(looking, e.place.target, id)
		cancel()
		if err != nil {
			return image.Base{}, false, err
		}
		if complete || !underway {
			base, err := e.cache.Ensure(ctx, e.source, e.place.target)
			return base, complete, err
		}
		provider.Report(ctx, "image %s: another node is sending it: waiting", e.source)
		if err := pause(ctx, lookAgain); err != nil {
			return image.Base{}, false, err
		}
	}
}

// identify asks the server no longer than it asks a host. A file of the node is read
// through, which takes as long as it takes.
func (e errand) identify(ctx context.Context, timeout time.Duration) (string, error) {
	if e.source.Path == "" {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, timeout)
		defer cancel()
	}
	return e.cache.Identify(ctx, e.source)
}

// result is how one errand went, for programs.
type result struct {
	Provider string `json:"provider"`
	Target   string `json:"target"`
	Image    string `json:"image"`
	// Result is fetched, present or failed.
	Result  string  `json:"result"`
	Digest  string  `json:"digest,omitempty"`
	Error   string  `json:"error,omitempty"`
	Seconds float64 `json:"seconds"`
}

// teller prints lines, one at a time.
type teller struct {
	mu     sync.Mutex // guards out
	out    io.Writer
	asJSON bool
}

func (t *teller) progress(p place, message string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.asJSON {
		_, _ = fmt.Fprintf(t.out, "%s: %s\n", p, message) // the result tells of a closed pipe
	}
}

func (t *teller) result(p place, r result) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.asJSON {
		return json.NewEncoder(t.out).Encode(r)
	}
	text := fmt.Sprintf("image %s is there already", r.Image)
	switch r.Result {
	case "failed":
		text = "FAILED: " + strings.TrimSuffix(r.Error, "\n")
	case "fetched":
		text = fmt.Sprintf("image %s was fetched in %.1f s", r.Image, r.Seconds)
	}
	_, err := fmt.Fprintf(t.out, "%s: %s\n", p, text)
	return err
}
