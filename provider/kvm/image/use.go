package image

import (
	"context"
	"strings"
	"time"

	"github.com/egress-proxies/egress/provider"
)

// useGrain is how exactly it is remembered when an image was last wanted: a
// fleet that starts at once writes once.
const useGrain = time.Hour

// useTimeout bounds the note, which no start shall wait for.
const useTimeout = 10 * time.Second

// used notes on the host that an image was wanted now. A line is written to its
// marker, whose time of writing is what counts, so that every Nomad node that
// shares the host sees it. A note that can't be made costs nothing but the
// knowledge: an image that is in use is never removed.
func (c *Cache) used(ctx context.Context, target Target, base Base) {
	now := time.Now()
	if base.UsedAt.IsZero() || now.Sub(base.UsedAt) < useGrain {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, useTimeout)
	defer cancel()
	line := "used " + now.UTC().Format(time.RFC3339) + "\n"
	if err := target.Upload(ctx, base.marker, strings.NewReader(line)); err != nil {
		c.options.Logger.Debug("could not note the use of an image", "target", target.String(), "volume", base.marker, "error", err)
	}
}

// Identify gives the id of an image's content as it is published now, by which
// Stored.Holds finds it: from its digest when one is configured, else by
// reading the file or asking the server. It is empty when nothing tells.
func (c *Cache) Identify(ctx context.Context, source Source) (string, error) {
	if id := declaredID(source); id != "" {
		return id, nil
	}
	f := &flight{cache: c, source: source}
	in, err := f.open(ctx)
	if err != nil {
		return "", err
	}
	defer in.Close()
	return in.id, nil
}

// Has says whether the target has the image complete, and is being sent it by
// somebody else otherwise. id is one of Identify.
func Has(ctx context.Context, target Target, id string) (complete, underway bool, err error) {
	volumes, err := target.List(ctx, Prefix+id)
	if err != nil || id == "" {
		return false, false, err
	}
	_, err = find(ctx, target, id)
	if err == nil {
		return true, false, nil
	}
	if provider.Classify(err) != provider.ErrNotFound {
		return false, false, err
	}
	for _, v := range volumes {
		_, data := parseBase(v.Name)
		underway = underway || (data && time.Since(v.ModifiedAt) < underwayAge)
	}
	return false, underway, nil
}

// underwayAge is how long ago a partial file may have been written to and still
// count as being sent.
const underwayAge = time.Minute
