package command_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/egress-proxies/egress/provider"
	"github.com/egress-proxies/egress/provider/fake"
	"github.com/egress-proxies/egress/provider/kvm/command"
	"github.com/egress-proxies/egress/provider/kvm/image"
)

// run runs `egress images` over providers and gives what it printed.
func run(ctx context.Context, providers map[string]provider.Provider, args ...string) (out, problems string, code int) {
	c := command.Command(func([]string, hclog.Logger) (map[string]provider.Provider, func() error, error) {
		if providers == nil {
			return nil, nil, errors.New(`no plugin "egress" block`)
		}
		return providers, nil, nil
	})
	var stdout, stderr bytes.Buffer
	c.SetOut(&stdout)
	c.SetErr(&stderr)
	c.SetArgs(args)
	err := c.ExecuteContext(ctx)
	var coded interface{ ExitCode() int }
	switch {
	case errors.As(err, &coded):
		code = coded.ExitCode()
	case err != nil:
		code = -1
	}
	return stdout.String(), stderr.String(), code
}

// scene is a provider with two hosts. a has every kind of image, b has none.
func scene(t *testing.T) (k *keeper, providers map[string]provider.Provider) {
	t.Helper()
	a, b := newPool("a/default"), newPool("b/default")
	a.stock(t, "a", true, 72*time.Hour, 3)
	a.stock(t, "b", true, 72*time.Hour, 0)
	a.stock(t, "c", true, time.Hour, 0)
	a.stock(t, "d", false, time.Minute, 0)
	a.stock(t, "e", false, 72*time.Hour, 0)
	entries := map[string]image.Entry{}
	for name, digit := range map[string]string{"debian-12": "a", "bookworm": "a", "old": "b"} {
		declared, _ := id(digit)
		entries[name] = image.Entry{URL: "https://cloud.example/" + name, SHA256: declared}
	}
	k = &keeper{Provider: fake.New(fake.Options{}), pools: []*pool{a, b}, catalog: image.Catalog{Entries: entries}}
	return k, map[string]provider.Provider{"hv": k, "local": fake.New(fake.Options{})}
}

// line is the first line that holds all of the words, with single spaces.
func line(t *testing.T, out string, words ...string) string {
	t.Helper()
	for text := range strings.Lines(out) {
		text = strings.Join(strings.Fields(text), " ")
		missing := false
		for _, word := range words {
			missing = missing || !strings.Contains(text, word)
		}
		if !missing {
			return text
		}
	}
	t.Errorf("no line with %q in\n%s", words, out)
	return ""
}

func TestWhatCannotBeDoneHasItsOwnExitCode(t *testing.T) {
	_, providers := scene(t)
	for name, tc := range map[string]struct {
		providers map[string]provider.Provider
		args      []string
		want      string
	}{
		"no config":        {nil, []string{"list"}, `no plugin "egress" block`},
		"no kvm":           {map[string]provider.Provider{"local": fake.New(fake.Options{})}, []string{"list"}, "no provider of type kvm"},
		"unknown provider": {providers, []string{"list", "--provider", "local"}, `--provider "local"`},
		"unknown target":   {providers, []string{"prune", "--target", "c"}, "want one of a/default, b/default"},
		"no time":          {providers, []string{"list", "--timeout", "0s"}, "--timeout 0s"},
		"negative age":     {providers, []string{"prune", "--older-than", "-1h"}, "--older-than -1h"},
		"nothing to warm":  {providers, []string{"warm"}, "no image: name some"},
		"unknown image":    {providers, []string{"warm", "debian-13"}, `image "debian-13": want one of bookworm, debian-12, old`},
		"all and some":     {providers, []string{"warm", "old", "--all"}, "--all"},
		"every instant":    {providers, []string{"warm", "old", "--every", "1ms"}, "--every 1ms"},
	} {
		if out, problems, code := run(t.Context(), tc.providers, tc.args...); code != 2 || !strings.Contains(problems, tc.want) {
			t.Errorf("%s: code %d, want 2 and %q\n%s%s", name, code, tc.want, out, problems)
		}
	}
}

func TestListTellsWhatIsThereAndWhatIsMissing(t *testing.T) {
	k, providers := scene(t)
	out, problems, code := run(t.Context(), providers, "list")
	if code != 0 || problems != "" {
		t.Errorf("code %d\n%s", code, problems)
	}
	if got := line(t, out, "bookworm,debian-12", "ready"); !strings.HasPrefix(got, "hv a/default bookworm,debian-12 aaaaaaaaaaaa qcow2 2048 MiB 345 MiB 3 ") {
		t.Errorf("line %q", got)
	}
	line(t, out, "a/default - cccccccccccc", "ready") // of no entry
	line(t, out, "a/default - - qcow2 - 345 MiB 0 - partial")
	line(t, out, "b/default old - - - - - - missing")
	if strings.Contains(out, "disk-") {
		t.Errorf("a disk is taken for an image:\n%s", out)
	}

	k.pools[1].err = provider.Transientf("no route to host")
	out, problems, code = run(t.Context(), providers, "list", "--json")
	var rows []struct {
		Target, State, Volume string
		Images                []string
		UsedBy                []string  `json:"used_by"`
		UsedAt                time.Time `json:"used_at"`
	}
	if err := json.Unmarshal([]byte(out), &rows); err != nil {
		t.Fatalf("%v in\n%s", err, out)
	}
	if code != 1 || len(rows) != 5 || !strings.Contains(problems, "not looked at: hv/b/default: no route to host") {
		t.Errorf("code %d, %d rows\n%s", code, len(rows), problems)
	}
	for _, r := range rows {
		if len(r.UsedBy) == 3 && (time.Since(r.UsedAt) < 71*time.Hour || len(r.Images) != 2 || r.State != "ready") {
			t.Errorf("the image in use: %+v", r)
		}
	}
	if out, _, code := run(t.Context(), providers, "list", "--target", "a"); code != 0 || strings.Contains(out, "b/default") {
		t.Errorf("only a: code %d\n%s", code, out)
	}
}

func TestPruneRemovesWhatNothingUses(t *testing.T) {
	k, providers := scene(t)
	before := len(k.pools[0].names())
	out, _, code := run(t.Context(), providers, "prune", "--dry-run", "--all")
	if code != 0 || len(k.pools[0].names()) != before {
		t.Errorf("dry run: code %d, left %q", code, k.pools[0].names())
	}
	line(t, out, "would remove hv a/default old bbbbbbbbbbbb 345 MiB", "unused")
	line(t, out, "keep", "aaaaaaaaaaaa", "in use by 3 disks")
	line(t, out, "keep", "cccccccccccc", "used less than 24h0m0s ago")
	line(t, out, "keep", "being fetched")
	line(t, out, "2 of 5 images would be removed, 690 MiB freed.")

	out, _, code = run(t.Context(), providers, "prune")
	if code != 0 || len(k.pools[0].names()) != before-3 { // an image, its marker, a partial file
		t.Errorf("code %d, left %q", code, k.pools[0].names())
	}
	line(t, out, "removed hv a/default old")
	line(t, out, "2 of 5 images removed")
	if strings.Contains(out, "keep") {
		t.Errorf("what is kept is shown without --all:\n%s", out)
	}
	out, _, _ = run(t.Context(), providers, "prune")
	line(t, out, "Nothing to remove: 3 images looked at.")
	if out, _, _ = run(t.Context(), providers, "prune", "--older-than", "0s"); !strings.Contains(out, "cccccccccccc") {
		t.Errorf("--older-than 0s:\n%s", out)
	}

	k.pools[0].err = provider.Transientf("no route to host")
	_, problems, code := run(t.Context(), providers, "prune")
	if code != 1 || !strings.Contains(problems, "not pruned: hv/a/default: no route to host") {
		t.Errorf("code %d\n%s", code, problems)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, code := run(ctx, providers, "prune"); code != 130 {
		t.Errorf("interrupted: code %d, want 130", code)
	}
}
