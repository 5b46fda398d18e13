package command

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/egress-proxies/egress/provider/kvm/image"
)

// row is one image in one pool, for programs.
type row struct {
	Provider string `json:"provider"`
	Target   string `json:"target"`
	// Images are the entries of the configuration whose image this is.
	Images []string `json:"images"`
	// State is ready, partial or missing.
	State         string     `json:"state"`
	Digest        string     `json:"digest,omitempty"`
	Format        string     `json:"format,omitempty"`
	VirtualBytes  int64      `json:"virtual_bytes"`
	PhysicalBytes int64      `json:"physical_bytes"`
	UsedBy        []string   `json:"used_by"`
	UsedAt        *time.Time `json:"used_at,omitempty"`
	WrittenAt     *time.Time `json:"written_at,omitempty"`
	Volume        string     `json:"volume,omitempty"`
	Path          string     `json:"path,omitempty"`
	// Action and Why are what prune does with it.
	Action string `json:"action,omitempty"`
	Why    string `json:"why,omitempty"`
}

func rowOf(p place, s image.Stored, names []string) row {
	r := row{
		Provider: p.provider, Target: p.target.String(), Images: names, State: "partial", Digest: s.Digest, Format: string(s.Format),
		VirtualBytes: s.VirtualSize, PhysicalBytes: s.Volume.Allocation, UsedBy: s.UsedBy, Volume: s.Volume.Name, Path: s.Volume.Path,
		UsedAt: timeOrNil(s.UsedAt), WrittenAt: timeOrNil(s.Volume.ModifiedAt),
	}
	if s.Complete {
		r.State = "ready"
	}
	if r.Images == nil {
		r.Images = []string{}
	}
	if r.UsedBy == nil {
		r.UsedBy = []string{}
	}
	return r
}

func timeOrNil(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	t = t.UTC().Truncate(time.Second)
	return &t
}

// rowsOf is all that was found, and the entries whose image is missing.
func rowsOf(stocks []stock, entries entryIDs) []row {
	rows := []row{}
	for _, s := range stocks {
		if s.err != nil {
			continue
		}
		there := map[string]bool{}
		for _, stored := range s.images {
			names := entries.names(s.place.provider, stored)
			for _, name := range names {
				there[name] = there[name] || stored.Complete
			}
			rows = append(rows, rowOf(s.place, stored, names))
		}
		for _, name := range slices.Sorted(maps.Keys(entries.ids[s.place.provider])) {
			if !there[name] && entries.ids[s.place.provider][name] != "" {
				rows = append(rows, row{
					Provider: s.place.provider, Target: s.place.target.String(), Images: []string{name}, State: "missing", UsedBy: []string{},
				})
			}
		}
	}
	return rows
}

func asJSON(w io.Writer, value any) error {
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	return encoder.Encode(value)
}

func listTable(w io.Writer, rows []row) error {
	if len(rows) == 0 {
		_, err := fmt.Fprintln(w, "No images.")
		return err
	}
	return table(w, "PROVIDER\tTARGET\tIMAGE\tDIGEST\tFORMAT\tSIZE\tON DISK\tUSED BY\tLAST USED\tSTATE", rows, func(r row) []string {
		if r.State == "missing" {
			return []string{r.Provider, r.Target, r.names(), "-", "-", "-", "-", "-", "-", r.State}
		}
		return []string{
			r.Provider, r.Target, r.names(), r.shortDigest(), r.Format, size(r.VirtualBytes), size(r.PhysicalBytes),
			strconv.Itoa(len(r.UsedBy)), when(r.UsedAt), r.State,
		}
	})
}

func table(w io.Writer, heading string, rows []row, cells func(row) []string) error {
	tab := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	_, err := fmt.Fprintln(tab, heading)
	for _, r := range rows {
		_, rowErr := fmt.Fprintln(tab, strings.Join(cells(r), "\t"))
		err = errors.Join(err, rowErr)
	}
	return errors.Join(err, tab.Flush())
}

func (r row) names() string {
	if len(r.Images) == 0 {
		return "-"
	}
	return strings.Join(r.Images, ",")
}

// shortDigest is enough to tell images apart.
func (r row) shortDigest() string {
	if r.Digest == "" {
		return "-"
	}
	return r.Digest[:min(12, len(r.Digest))]
}

// size is in the largest unit that leaves a digit before the point.
func size(bytes int64) string {
	switch {
	case bytes <= 0:
		return "-"
	case bytes < 1<<20:
		return fmt.Sprintf("%d KiB", (bytes+1<<10-1)>>10)
	case bytes < 10<<30:
		return fmt.Sprintf("%d MiB", (bytes+1<<20-1)>>20)
	default:
		return fmt.Sprintf("%d GiB", (bytes+1<<30-1)>>30)
	}
}

func when(t *time.Time) string {
	if t == nil {
		return "-"
	}
	return t.Local().Format("2006-01-02 15:04")
}
