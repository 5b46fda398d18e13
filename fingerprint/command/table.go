package command

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/egress-proxies/egress/fingerprint"
	"github.com/egress-proxies/egress/provider"
)

// show prints one round.
type show func(targets []fingerprint.Target, at time.Time) error

// printer chooses how rounds are printed.
func printer(w io.Writer, f flags) show {
	if f.asJSON {
		encoder := json.NewEncoder(w)
		if !f.watch {
			encoder.SetIndent("", "  ")
		}
		return func(targets []fingerprint.Target, at time.Time) error { return encoder.Encode(document(targets, at)) }
	}
	if !f.watch {
		return func(targets []fingerprint.Target, _ time.Time) error { return table(w, targets) }
	}
	clearing := ""
	if isTerminal(w) {
		clearing = "\x1b[H\x1b[2J"
	}
	return func(targets []fingerprint.Target, at time.Time) error {
		if _, err := fmt.Fprintf(w, "%s%s\n", clearing, at.Format(time.DateTime)); err != nil {
			return err
		}
		return table(w, targets)
	}
}

func isTerminal(w io.Writer) bool {
	file, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := file.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// round is the JSON of one round.
type round struct {
	At      time.Time `json:"at"`
	Ready   int       `json:"ready"`
	Total   int       `json:"total"`
	Targets []target  `json:"targets"`
}

type target struct {
	Provider       string            `json:"provider"`
	Type           string            `json:"type"`
	Target         string            `json:"target"`
	Ready          bool              `json:"ready"`
	Reason         provider.Reason   `json:"reason"`
	Message        string            `json:"message,omitempty"`
	LatencySeconds float64           `json:"latency_seconds"`
	Facts          map[string]string `json:"facts,omitempty"`
}

func document(targets []fingerprint.Target, at time.Time) round {
	r := round{At: at.UTC(), Total: len(targets), Targets: make([]target, 0, len(targets))}
	for _, t := range targets {
		if t.Ready {
			r.Ready++
		}
		r.Targets = append(r.Targets, target{
			Provider: t.Provider, Type: t.Type, Target: t.Target, Ready: t.Ready, Reason: t.Reason, Message: message(t),
			LatencySeconds: t.Latency.Seconds(), Facts: t.Facts,
		})
	}
	return r
}

// message is what to do about a target that isn't ready, and else what it says.
func message(t fingerprint.Target) string {
	if t.Message == "" && !t.Ready {
		return fingerprint.Advice(t.Reason)
	}
	return t.Message
}

// table prints the targets and, below, what to do about those that aren't ready.
func table(w io.Writer, targets []fingerprint.Target) error {
	tab := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tab, "PROVIDER\tTARGET\tTYPE\tREADY\tREASON\tLATENCY\tFACTS")
	for _, t := range targets {
		ready := "no"
		if t.Ready {
			ready = "yes"
		}
		fmt.Fprintf(tab, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n",
			t.Provider, dash(t.Target), t.Type, ready, t.Reason, latency(t.Latency), facts(fingerprint.Readable(t.Facts)))
	}
	if err := tab.Flush(); err != nil {
		return err
	}
	heading := "\nWhat to do:\n"
	for _, t := range targets {
		if t.Ready {
			continue
		}
		if _, err := fmt.Fprintf(w, "%s  %s/%s: %s: %s\n", heading, t.Provider, dash(t.Target), t.Reason, message(t)); err != nil {
			return err
		}
		heading = ""
	}
	return nil
}

// dash stands for the targets of a provider that has not named any.
func dash(target string) string {
	if target == "" {
		return "-"
	}
	return target
}

// latency has as many digits as a person wants.
func latency(d time.Duration) string {
	if d < time.Millisecond {
		return "<1ms"
	}
	return d.Round(time.Millisecond).String()
}

func facts(facts map[string]string) string {
	var list []string
	for _, key := range slices.Sorted(maps.Keys(facts)) {
		list = append(list, key+"="+facts[key])
	}
	return dash(strings.Join(list, " "))
}
