package consul

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/egress-proxies/egress/lease"
)

// Facts say where exit addresses really are, by network, from a file. They win
// over labels, so that a proxy which is labelled PL and leaves in DE is never
// leased for PL. A nil *Facts knows nothing.
//
// A line of the file is a network and then key=value pairs, separated by spaces
// or commas; # starts a comment. Of several networks the narrowest counts.
type Facts struct {
	path   string
	logger hclog.Logger
	table  atomic.Pointer[factTable]
}

type factTable struct {
	// byLength holds the networks by prefix length, the longest first.
	byLength []factLevel
}

type factLevel struct {
	bits  int
	is6   bool
	facts map[netip.Prefix][]fact
}

type fact struct{ key, value string }

// LoadFacts reads the file.
func LoadFacts(path string, logger hclog.Logger) (*Facts, error) {
	if logger == nil {
		logger = hclog.NewNullLogger()
	}
	f := &Facts{path: path, logger: logger}
	return f, f.load()
}

func (f *Facts) load() error {
	data, err := os.ReadFile(f.path)
	if err != nil {
		return fmt.Errorf("networks file: %w", err)
	}
	table, err := parseFacts(data)
	if err != nil {
		return fmt.Errorf("networks file %s: %w", f.path, err)
	}
	f.table.Store(table)
	return nil
}

// run reads the file again when it changes, until ctx ends.
func (f *Facts) run(ctx context.Context, changed func()) {
	watchFile(ctx, f.path, filePoll, func() {
		if err := f.load(); err != nil {
			f.logger.Warn("kept the networks that were known", "error", err)
			return
		}
		f.logger.Info("read the networks again", "path", f.path)
		changed()
	})
}

func parseFacts(data []byte) (*factTable, error) {
	levels := map[[2]int]*factLevel{}
	scanner := bufio.NewScanner(bytes.NewReader(data))
	for number := 1; scanner.Scan(); number++ {
		line, _, _ := strings.Cut(scanner.Text(), "#")
		fields := strings.FieldsFunc(line, func(r rune) bool { return r == ' ' || r == '\t' || r == ',' || r == ';' })
		if len(fields) == 0 {
			continue
		}
		prefix, err := netip.ParsePrefix(fields[0])
		if err != nil {
			return nil, fmt.Errorf("line %d: %q: want a network such as 192.0.2.0/24", number, fields[0])
		}
		prefix = prefix.Masked()
		level := levels[[2]int{prefix.Bits(), prefix.Addr().BitLen()}]
		if level == nil {
			level = &factLevel{bits: prefix.Bits(), is6: prefix.Addr().Is6(), facts: map[netip.Prefix][]fact{}}
			levels[[2]int{prefix.Bits(), prefix.Addr().BitLen()}] = level
		}
		for _, pair := range fields[1:] {
			key, value, ok := strings.Cut(pair, "=")
			if !ok || key == "" {
				return nil, fmt.Errorf("line %d: %q: want key=value", number, pair)
			}
			level.facts[prefix] = append(level.facts[prefix], fact{key, value})
		}
	}
	table := &factTable{}
	for _, level := range levels {
		table.byLength = append(table.byLength, *level)
	}
	slices.SortFunc(table.byLength, func(a, b factLevel) int { return b.bits - a.bits })
	return table, scanner.Err()
}

// find gives the facts of the narrowest network that has the address.
func (t *factTable) find(addr netip.Addr) []fact {
	for i := range t.byLength {
		level := &t.byLength[i]
		if level.is6 != addr.Is6() {
			continue
		}
		prefix, err := addr.Prefix(level.bits)
		if err != nil {
			continue
		}
		if facts, ok := level.facts[prefix]; ok {
			return facts
		}
	}
	return nil
}

// apply gives the proxies with what is known about their exits.
func (f *Facts) apply(list []*lease.Proxy) []*lease.Proxy {
	if f == nil {
		return list
	}
	table := f.table.Load()
	out := make([]*lease.Proxy, len(list))
	for i, p := range list {
		out[i] = p
		if !p.ExitIP.IsValid() {
			continue
		}
		facts := table.find(p.ExitIP)
		if len(facts) == 0 {
			continue
		}
		known := *p
		known.Attributes = make(map[string]string, len(p.Attributes)+len(facts))
		for key, value := range p.Attributes {
			known.Attributes[key] = value
		}
		for _, fact := range facts {
			known.Attributes[fact.key] = fact.value
		}
		out[i] = &known
	}
	return out
}

// filePoll is how often a file is looked at. Polling sees a replaced file, a
// rewritten one and a changed symbolic link alike.
const filePoll = time.Second

// watchFile calls changed when the file is another one than before.
func watchFile(ctx context.Context, path string, every time.Duration, changed func()) {
	last, _ := os.Stat(path)
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		now, err := os.Stat(path)
		if err != nil {
			continue // being replaced, or gone: what was read stays
		}
		if last != nil && os.SameFile(last, now) && last.ModTime().Equal(now.ModTime()) && last.Size() == now.Size() {
			continue
		}
		last = now
		changed()
	}
}
