package image

import (
	"context"
	"sort"
	"time"

	"github.com/egress-proxies/egress/provider"
)

// Stored is an image as it lies in a pool.
type Stored struct {
	Base
	// Complete is false for a file that is being written, or was left when
	// its writing broke off. Format is set, VirtualSize and Digest are not.
	Complete bool
	// UsedBy are the names of the volumes that stand on it.
	UsedBy []string

	id     string
	marker string
}

// For says whether the entry's image is this one. It can be told only of
// entries with a digest.
func (s Stored) For(entry Entry) bool {
	source, err := entry.source("")
	return err == nil && s.id != "" && declaredID(source) == s.id
}

// List gives every image in the pool, complete or not, by name.
func List(ctx context.Context, target Target) ([]Stored, error) {
	volumes, err := target.List(ctx, "")
	if err != nil {
		return nil, err
	}
	byName := map[string]*Stored{}
	byPath := map[string]*Stored{}
	for _, v := range volumes {
		if name, ok := parseBase(v.Name); ok {
			s := &Stored{Base: Base{Target: target.String(), Volume: v, Format: name.format}, id: name.id}
			byName[v.Name], byPath[v.Path] = s, s
		}
	}
	for _, v := range volumes {
		if m, ok := parseMarker(v.Name); ok {
			if s := byName[m.base.String()]; s != nil {
				s.Complete, s.VirtualSize, s.Digest, s.marker = true, m.virtualSize, m.digest, v.Name
			}
		}
		if s := byPath[v.Backing]; s != nil && v.Backing != "" {
			s.UsedBy = append(s.UsedBy, v.Name)
		}
	}
	all := make([]Stored, 0, len(byName))
	for _, s := range byName {
		all = append(all, *s)
	}
	sort.Slice(all, func(i, j int) bool { return all[i].Volume.Name < all[j].Volume.Name })
	return all, nil
}

// PartialAge is how long an incomplete file must not have been written to
// before it counts as left behind. A download writes all the time; an hour is
// far above any pause that it survives.
const PartialAge = time.Hour

// Prune removes the complete images that nothing stands on and that have not
// been written within minAge, and the incomplete ones that were left behind. It
// returns what it removed, also along with an error.
//
// An image is hidden from new tasks before it is looked at for the last time,
// so that no task can begin to use it in between. A task that was about to is
// told that it is missing and fetches it again.
func Prune(ctx context.Context, target Target, now time.Time, minAge time.Duration) ([]Stored, error) {
	stored, err := List(ctx, target)
	if err != nil {
		return nil, err
	}
	if err := pruneMarkers(ctx, target); err != nil {
		return nil, err
	}
	var removed []Stored
	for _, s := range stored {
		age := now.Sub(s.Volume.ModifiedAt)
		if s.Volume.ModifiedAt.IsZero() || age < minAge || len(s.UsedBy) > 0 || (!s.Complete && age < PartialAge) {
			continue
		}
		gone, err := prune(ctx, target, s)
		if err != nil {
			return removed, err
		}
		if gone {
			removed = append(removed, s)
		}
	}
	return removed, nil
}

// prune removes one image unless somebody began to use it meanwhile.
func prune(ctx context.Context, target Target, s Stored) (bool, error) {
	if s.Complete {
		if err := target.Delete(ctx, s.marker); err != nil {
			return false, err
		}
	}
	volumes, err := target.List(ctx, "")
	used := err != nil // unknown
	for _, v := range volumes {
		used = used || (v.Backing != "" && v.Backing == s.Volume.Path)
	}
	if !used {
		return true, target.Delete(ctx, s.Volume.Name)
	}
	if s.Complete {
		if _, createErr := target.Create(ctx, NewVolume{Name: s.marker, Format: string(Raw)}); createErr != nil {
			return false, createErr
		}
	}
	return false, err
}

// pruneMarkers removes markers whose image is gone.
func pruneMarkers(ctx context.Context, target Target) error {
	volumes, err := target.List(ctx, Prefix)
	if err != nil {
		return err
	}
	for _, v := range volumes {
		m, ok := parseMarker(v.Name)
		if !ok {
			continue
		}
		if _, err := target.Lookup(ctx, m.base.String()); provider.Classify(err) != provider.ErrNotFound {
			continue
		}
		if err := target.Delete(ctx, v.Name); err != nil {
			return err
		}
	}
	return nil
}
