package provider_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/egress-proxies/egress/provider"
)

func TestClassify(t *testing.T) {
	for name, tc := range map[string]struct {
		err  error
		want error
	}{
		"nil":                      {nil, nil},
		"without a class":          {errors.New("boom"), provider.ErrTransient},
		"deadline":                 {context.DeadlineExceeded, provider.ErrTransient},
		"sentinel":                 {fmt.Errorf("x: %w", provider.ErrQuotaExceeded), provider.ErrQuotaExceeded},
		"formatted":                {provider.Permanentf("bad %d", 1), provider.ErrPermanent},
		"wrapped formatted":        {fmt.Errorf("host a: %w", provider.NotFoundf("no")), provider.ErrNotFound},
		"the outermost class wins": {provider.Permanentf("x: %w", provider.Transientf("y")), provider.ErrPermanent},
	} {
		if got := provider.Classify(tc.err); got != tc.want {
			t.Errorf("%s: %v, want %v", name, got, tc.want)
		}
	}
	err := provider.Quotaf("pool %q: 3 GiB free, 10 GiB wanted: %w", "default", context.Canceled)
	if want := `pool "default": 3 GiB free, 10 GiB wanted: context canceled`; err.Error() != want {
		t.Errorf("text is %q, want %q without the class", err, want)
	}
	if !errors.Is(err, context.Canceled) || !errors.Is(err, provider.ErrQuotaExceeded) {
		t.Error("both the cause and the class must be found in the error")
	}
}

func TestName(t *testing.T) {
	const alloc = "4f2c9a1e-58b5-6d0c-1c3f-0a6c57a4f0aa"
	names := map[string]string{}
	for _, key := range [][3]string{
		{"a", alloc, "proxy"}, {"b", alloc, "proxy"}, {"a", alloc, "proxy2"}, {"a", alloc, "Pröxy/../x"},
		{"a", alloc, strings.Repeat("long", 40)}, {"a", "", ""}, {"a", alloc, "------"},
	} {
		name := provider.Name(key[0], key[1], key[2])
		if err := provider.CheckName(name); err != nil {
			t.Errorf("name of %q: %v", key, err)
		}
		if len(name) > 40 {
			t.Errorf("name %q has %d characters, want at most 40", name, len(name))
		}
		if name != provider.Name(key[0], key[1], key[2]) {
			t.Errorf("name of %q differs between calls", key)
		}
		if other, ok := names[name]; ok {
			t.Errorf("%q and %q share the name %q", key, other, name)
		}
		names[name] = fmt.Sprint(key)
	}
	if got := provider.Name("a", alloc, "proxy"); !strings.HasPrefix(got, "eg-4f2c9a1e-proxy-") {
		t.Errorf("name %q doesn't begin with the allocation and the task", got)
	}
}

func TestLabelsRoundTrip(t *testing.T) {
	want := provider.Labels{
		Cluster: "c", Namespace: "n", Job: "j/with slash", Group: "g", Alloc: "a", Task: "t", Node: "o",
		CreatedAt: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC),
	}
	got, managed := provider.LabelsFromMap(want.Map())
	if !managed {
		t.Error("our own labels are not recognised")
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if _, managed := provider.LabelsFromMap(map[string]string{"x": "y"}); managed {
		t.Error("a stranger's labels are taken for ours")
	}
}

func TestCredentialsAreNotPrinted(t *testing.T) {
	spec := provider.Spec{Auth: provider.Credentials{Username: "u", Password: "hunter2"}}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s"} {
		if text := fmt.Sprintf(verb, spec); strings.Contains(text, "hunter2") {
			t.Errorf("%s shows the password: %s", verb, text)
		}
	}
}

func TestDecodeOptions(t *testing.T) {
	type host struct {
		Address string `option:"address"`
		Pool    string `option:"pool"`
	}
	type options struct {
		Hosts   map[string]host `option:"host,required"`
		Timeout time.Duration   `option:"timeout"`
		Limit   int             `option:"limit"`
		Nets    []string        `option:"nets"`
		On      bool            `option:"on"`
	}
	for name, tc := range map[string]struct {
		in   map[string]any
		want []string
	}{
		"unknown key":        {map[string]any{"host": map[string]any{}, "tiemout": "1s"}, []string{`"tiemout"`, "timeout"}},
		"unknown nested key": {map[string]any{"host": map[string]any{"a": map[string]any{"adress": "x"}}}, []string{"host", "adress"}},
		"missing":            {map[string]any{}, []string{`"host" is missing`}},
		"wrong type":         {map[string]any{"host": map[string]any{}, "limit": "many"}, []string{`"limit"`, "many", "whole number"}},
		"fraction":           {map[string]any{"host": map[string]any{}, "limit": 1.5}, []string{"1.5", "whole number"}},
		"bad duration":       {map[string]any{"host": map[string]any{}, "timeout": "soon"}, []string{"soon"}},
		"duration as number": {map[string]any{"host": map[string]any{}, "timeout": 5}, []string{`"timeout"`, "5", "duration"}},
		"all at once":        {map[string]any{"x": 1, "limit": true}, []string{`"x"`, `"limit"`, "true", `"host" is missing`}},
	} {
		var got options
		err := provider.DecodeOptions(tc.in, &got)
		if err == nil {
			t.Errorf("%s: want an error", name)
			continue
		}
		for _, part := range tc.want {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("%s: %q doesn't mention %q", name, err, part)
			}
		}
	}
	var got options
	err := provider.DecodeOptions(map[string]any{
		"host":    map[string]any{"a": map[string]any{"address": "unix:///x", "pool": "p"}},
		"timeout": "1m", "limit": float64(3), "nets": []any{"10.0.0.0/8"}, "on": true,
	}, &got)
	want := options{
		Hosts:   map[string]host{"a": {"unix:///x", "p"}},
		Timeout: time.Minute, Limit: 3, Nets: []string{"10.0.0.0/8"}, On: true,
	}
	if err != nil || !cmp.Equal(want, got) {
		t.Errorf("%v, (-want +got):\n%s", err, cmp.Diff(want, got))
	}
}

func TestBuildNamesWhatIsWrong(t *testing.T) {
	factories := provider.Factories{"process": func(provider.Config, provider.Env) (provider.Provider, error) {
		return nil, errors.New(`key "x" is missing`)
	}}
	for name, tc := range map[string]struct {
		config provider.Config
		want   []string
	}{
		"unknown type": {provider.Config{Name: "a", Type: "docker"}, []string{`"a"`, `"docker"`, "process"}},
		"bad name":     {provider.Config{Name: "a/b", Type: "process"}, []string{`"a/b"`, "'/'"}},
		"own error":    {provider.Config{Name: "a", Type: "process"}, []string{`"a"`, `"x" is missing`}},
	} {
		_, err := factories.Build(tc.config, provider.Env{})
		for _, part := range tc.want {
			if err == nil || !strings.Contains(err.Error(), part) {
				t.Errorf("%s: %v, want it to mention %s", name, err, part)
			}
		}
	}
}
