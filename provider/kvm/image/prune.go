package image

import (
	"context"
	"fmt"
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

	id string
}

// Holds says whether this is the image that Cache.Identify gave the id of.
func (s Stored) Holds(id string) bool { return id != "" && s.id == id }

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
				s.Base = m.found(target, s.Volume, v)
				s.Complete = true
			}
		}
		if s := byPath[v.Backing]; s != nil && v.Backing != "" {
			s.UsedBy = append(s.UsedBy, v.Name)
		}
	}
	all := make([]Stored, 0, len(byName))
	for _, s := range byName {
		sort.Strings(s.UsedBy)
		all = append(all, *s)
	}
	sort.Slice(all, func(i, j int) bool { return all[i].Volume.Name < all[j].Volume.Name })
	return all, nil
}

// PartialAge is how long an incomplete file must not have been written to
// before it counts as left behind. A download writes all the time; an hour is
// far above any pause that it survives.
const PartialAge = time.Hour

// Kept is why an image must stay, for a person; empty when it may be removed:
// nothing stands on it, and nobody wanted it within minAge.
func (s Stored) Kept(now time.Time, minAge time.Duration) string {
	switch written := s.Volume.ModifiedAt; {
	case len(s.UsedBy) == 1:
		return "in use by " + s.UsedBy[0]
	case len(s.UsedBy) > 1:
		return fmt.Sprintf("in use by %d disks", len(s.UsedBy))
	case written.IsZero():
		return "the host does not say how old it is"
	case !s.Complete && now.Sub(written) < PartialAge:
		return "being fetched"
	case s.Complete && now.Sub(s.UsedAt) < minAge:
		return fmt.Sprintf("used less than %v ago", minAge)
	case !s.Complete && now.Sub(written) < minAge:
		return fmt.Sprintf("written less than %v ago", minAge)
	default:
		return ""
	}
}

// Prune removes the complete images that nothing stands on and that nobody
// wanted within minAge, and the incomplete ones that were left behind. It
// returns what it removed, also along with an error.
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
		if s.Kept(now, minAge) != "" {
			continue
		}
		gone, err := remove(ctx, target, s)
		if err != nil {
			return removed, err
		}
		if gone {
			removed = append(removed, s)
		}
	}
	return removed, nil
}

// restoreTime bounds what must be put right after the caller has given up.
const restoreTime = 10 * time.Second

// remove removes one image unless somebody began to use it meanwhile. It is
// hidden from new tasks before it is looked at for the last time, so that no
// task can begin to use it in between. A task that was about to is told that it
// is missing and fetches it again.
func remove(ctx context.Context, target Target, s Stored) (bool, error) {
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
		// Also after Ctrl-C: an image without its marker would be fetched again.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), restoreTime)
		defer cancel()
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
