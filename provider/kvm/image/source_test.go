package image

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/egress-proxies/egress/provider"
)

func TestEntriesThatAreWrong(t *testing.T) {
	good := strings.Repeat("0a", 32)
	for name, c := range map[string]struct {
		entry Entry
		want  string
	}{
		"no url":         {Entry{}, "url"},
		"ftp":            {Entry{URL: "ftp://x/y"}, `url "ftp://x/y"`},
		"no host":        {Entry{URL: "http:///y"}, "url"},
		"relative":       {Entry{URL: "images/x"}, "absolute path"},
		"control":        {Entry{URL: "http://u:geheim@x/\x7f"}, "url"},
		"short digest":   {Entry{URL: "/x", SHA256: "ab"}, `sha256 "ab": want 64`},
		"not a digest":   {Entry{URL: "/x", SHA256: strings.Repeat("zz", 32)}, "sha256"},
		"wrong digest":   {Entry{URL: "/x", SHA512: good}, `want 128`},
		"wrong format":   {Entry{URL: "/x", Format: "vmdk"}, `format "vmdk"`},
		"wrong firmware": {Entry{URL: "/x", Firmware: "coreboot"}, `firmware "coreboot"`},
	} {
		err := c.entry.Validate()
		if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "geheim") {
			t.Errorf("%s: got %v; want %q", name, err, c.want)
		}
		catalog := Catalog{Entries: map[string]Entry{"bad": c.entry, "a/b": {URL: "/x"}}, Dirs: []string{"rel"}}
		if err := catalog.Validate(); err == nil || !strings.Contains(err.Error(), `image "bad": `) ||
			!strings.Contains(err.Error(), `"a/b"`) || !strings.Contains(err.Error(), `"rel"`) {
			t.Errorf("%s: the catalog says %v", name, err)
		}
	}
}

func TestEntryIsTakenAsItIs(t *testing.T) {
	catalog := Catalog{Entries: map[string]Entry{
		"debian": {URL: "https://x/d.qcow2", SHA256: strings.Repeat("AB", 32), Format: "qcow2", Firmware: "bios"},
		"local":  {URL: "/srv/../srv/d.img"},
	}, NoURLs: true}
	if err := catalog.Validate(); err != nil {
		t.Fatal(err)
	}
	s, err := catalog.Resolve("debian", "")
	if err != nil || s.URL.String() != "https://x/d.qcow2" || s.SHA256 != strings.Repeat("ab", 32) || s.Format != Qcow2 || s.Firmware != BIOS || s.String() != "debian" {
		t.Errorf("got %+v, %v", s, err)
	}
	s, err = catalog.Resolve("local", "")
	if err != nil || s.Path != "/srv/d.img" || s.Firmware != UEFI {
		t.Errorf("got %+v, %v", s, err)
	}
}

func TestImagesOfATasksOwn(t *testing.T) {
	root := t.TempDir()
	task, shared, other := filepath.Join(root, "task"), filepath.Join(root, "images"), filepath.Join(root, "images-of-others")
	for _, dir := range []string{task, shared, other} {
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "disk"), []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("/etc/passwd", filepath.Join(task, "link")); err != nil {
		t.Fatal(err)
	}
	catalog := Catalog{Entries: map[string]Entry{"debian": {URL: "/x"}}, Dirs: []string{shared}}
	for image, good := range map[string]bool{
		"disk":                          false, // neither a path nor an entry
		"./disk":                        true,
		filepath.Join(task, "disk"):     true,
		filepath.Join(shared, "disk"):   true,
		"../images/disk":                true,
		"../images-of-others/disk":      false,
		filepath.Join(other, "disk"):    false,
		"./link":                        false,
		"/etc/passwd":                   false,
		shared + "/../task/link":        false,
		filepath.Join(shared, "nosuch"): false,
		"http://x/disk":                 true,
		"file:///etc/passwd":            false,
		"debian2":                       false,
	} {
		s, err := catalog.Resolve(image, task)
		if (err == nil) != good {
			t.Errorf("%s: got %+v, %v", image, s, err)
		}
		if err != nil && (provider.Classify(err) != provider.ErrPermanent || !strings.Contains(err.Error(), "image")) {
			t.Errorf("%s: got %v", image, err)
		}
	}
	if _, err := (Catalog{}).Resolve("./disk", ""); err == nil {
		t.Error("a relative path without a task's directory was taken")
	}
	if _, err := (Catalog{NoURLs: true}).Resolve("http://u:geheim@x/disk", ""); err == nil || strings.Contains(err.Error(), "geheim") {
		t.Errorf("NoURLs: %v", err)
	}
}

func TestSourcesDoNotPrintSecrets(t *testing.T) {
	s, err := Catalog{}.Resolve("https://u:geheim@host/disk.img?sig=geheim#geheim", "")
	if err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprintf("%v", s); got != "https://host/disk.img" {
		t.Errorf("prints %q", got)
	}
}

func TestNamesAreReadBack(t *testing.T) {
	name := baseName{strings.Repeat("ab", 16), "12345678", "0123456789abcdef", Qcow2}
	if got, ok := parseBase(name.String()); !ok || got != name {
		t.Errorf("%s: got %+v, %v", name, got, ok)
	}
	m := marker{name, 1 << 40, strings.Repeat("cd", 16)}
	if got, ok := parseMarker(m.String()); !ok || got != m || len(m.String()) > 255 {
		t.Errorf("%s: got %+v, %v", m, got, ok)
	}
	for _, s := range []string{"", "x", Prefix, Prefix + "a.b.c.vmdk", Prefix + "a.b.c", m.String() + "x", name.String() + ".0.x.ready", name.String() + ".x.y.ready"} {
		if _, ok := parseMarker(s); ok {
			t.Errorf("%q was read as a marker", s)
		}
		if _, ok := parseBase(s); ok {
			t.Errorf("%q was read as a base", s)
		}
	}
}
