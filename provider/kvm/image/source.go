package image

import (
	"encoding/hex"
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"sort"
	"strings"

	"github.com/egress-proxies/egress/provider"
)

// Format is how the bytes of a disk are laid out in a file.
type Format string

// The formats that a guest can boot from.
const (
	Raw   Format = "raw"
	Qcow2 Format = "qcow2"
)

// Firmware is what starts the guest.
type Firmware string

// The firmwares. UEFI is the default: Debian 13's cloud image hangs in GRUB
// under BIOS on a machine with a serial console (Debian bug 1111240).
const (
	UEFI Firmware = "uefi"
	BIOS Firmware = "bios"
)

// Entry is one `image "name" { … }` block of the provider's configuration.
type Entry struct {
	// URL is an http or https URL, or the absolute path of a file on the Nomad
	// node.
	URL string `option:"url,required"`
	// SHA256 is the digest, in hexadecimal, of the file as it is published: of
	// the compressed one when it is compressed. Give one of the two digests:
	// it proves the content, and saves asking the server at every start.
	SHA256 string `option:"sha256"`
	// SHA512 is the same for SHA-512.
	SHA512 string `option:"sha512"`
	// Format is "qcow2" or "raw". The file's header decides; a format that is
	// given and differs is an error.
	Format string `option:"format"`
	// Firmware is "uefi", the default, or "bios".
	Firmware string `option:"firmware"`
}

// Validate names the first key that is wrong, its value and what is expected.
func (e Entry) Validate() error {
	_, err := e.source("")
	return err
}

// source is the entry as something to fetch.
func (e Entry) source(name string) (Source, error) {
	s := Source{Name: name, Format: Format(e.Format), Firmware: Firmware(e.Firmware)}
	var err error
	if s.SHA256, err = digest("sha256", e.SHA256, 32); err != nil {
		return Source{}, err
	}
	if s.SHA512, err = digest("sha512", e.SHA512, 64); err != nil {
		return Source{}, err
	}
	if s.Format != "" && s.Format != Raw && s.Format != Qcow2 {
		return Source{}, fmt.Errorf(`format %q: want "qcow2" or "raw", or leave it out`, e.Format)
	}
	if s.Firmware == "" {
		s.Firmware = UEFI
	}
	if s.Firmware != UEFI && s.Firmware != BIOS {
		return Source{}, fmt.Errorf(`firmware %q: want "uefi" or "bios"`, e.Firmware)
	}
	if filepath.IsAbs(e.URL) {
		s.Path = filepath.Clean(e.URL)
		return s, nil
	}
	s.URL, err = httpURL(e.URL)
	return s, err
}

// digest checks the form of a checksum, so that a typo is not found out after
// the download.
func digest(key, value string, size int) (string, error) {
	value = strings.ToLower(strings.TrimSpace(value))
	if raw, err := hex.DecodeString(value); value != "" && (err != nil || len(raw) != size) {
		return "", fmt.Errorf("%s %q: want %d hexadecimal digits", key, value, 2*size)
	}
	return value, nil
}

// httpURL parses an address. Its errors don't repeat it: it may hold a password.
func httpURL(s string) (*url.URL, error) {
	u, err := url.Parse(s)
	if err != nil {
		var parse *url.Error
		if errors.As(err, &parse) {
			err = parse.Err
		}
		return nil, fmt.Errorf("url: %w", err)
	}
	if (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" {
		return nil, fmt.Errorf("url %q: want http://…, https://… or the absolute path of a file on the Nomad node", u.Redacted())
	}
	return u, nil
}

// Source is one image to fetch.
type Source struct {
	// Name is the entry's name; empty for a URL or a path of a task's own.
	Name string
	// URL is where it is fetched from, unless Path is set.
	URL *url.URL
	// Path is a file on the Nomad node.
	Path string
	// SHA256 and SHA512 are the digests that the file must have, in lower-case
	// hexadecimal; empty is not checked.
	SHA256, SHA512 string
	// Format is what the header must say; empty takes either.
	Format Format
	// Firmware is what the image boots with.
	Firmware Firmware
}

// String names the image in messages. The query of a URL is left out, since
// that is where signed URLs carry their secret.
func (s Source) String() string {
	switch {
	case s.Name != "":
		return s.Name
	case s.URL != nil:
		return s.URL.Scheme + "://" + s.URL.Host + s.URL.EscapedPath()
	default:
		return s.Path
	}
}

// key is equal for sources that one download can serve.
func (s Source) key() string {
	where := s.Path
	if s.URL != nil {
		where = s.URL.String()
	}
	return strings.Join([]string{where, s.SHA256, s.SHA512, string(s.Format)}, "\n")
}

// Catalog says which images tasks may boot.
type Catalog struct {
	// Entries are the named images.
	Entries map[string]Entry
	// Dirs are directories on the Nomad node whose files a task may name by
	// their path. The plugin reads as root: without this list a job could boot
	// from, and so read, any file of the node. Files below the task's own
	// directory are always allowed.
	Dirs []string
	// NoURLs refuses images that a task names by URL.
	NoURLs bool
}

// Validate checks every entry, and tells of all that are wrong.
func (c Catalog) Validate() error {
	var problems []error
	for _, name := range c.names() {
		if err := provider.CheckPlace("image", name); err != nil {
			problems = append(problems, err)
		} else if err := c.Entries[name].Validate(); err != nil {
			problems = append(problems, fmt.Errorf("image %q: %w", name, err))
		}
	}
	for _, dir := range c.Dirs {
		if !filepath.IsAbs(dir) {
			problems = append(problems, fmt.Errorf("image_dirs: %q: want an absolute path", dir))
		}
	}
	return errors.Join(problems...)
}

func (c Catalog) names() []string {
	names := make([]string, 0, len(c.Entries))
	for name := range c.Entries {
		names = append(names, name)
	}
	sort.Strings(names)
	return names
}

// Resolve finds what a task's `image` means: the name of an entry, a URL, or a
// path, which may be relative to the task's directory taskDir. Its errors are
// of class ErrPermanent.
func (c Catalog) Resolve(image, taskDir string) (Source, error) {
	if entry, ok := c.Entries[image]; ok {
		s, err := entry.source(image)
		if err != nil {
			return Source{}, provider.Permanentf("image %q: %w", image, err)
		}
		return s, nil
	}
	if strings.Contains(image, "://") {
		u, err := httpURL(image)
		if err != nil {
			return Source{}, provider.Permanentf("image: %w", err)
		}
		s := Source{URL: u, Firmware: UEFI}
		if c.NoURLs {
			return Source{}, provider.Permanentf("image %q: URLs are not allowed here: want one of %s", s, strings.Join(c.names(), ", "))
		}
		return s, nil
	}
	if strings.Contains(image, "/") {
		path, err := c.allowed(image, taskDir)
		if err != nil {
			return Source{}, err
		}
		return Source{Path: path, Firmware: UEFI}, nil
	}
	return Source{}, provider.Permanentf("image %q: want one of %s, an http(s) URL or a path", image, strings.Join(c.names(), ", "))
}

// allowed is the real path of a file that a task named, if it may have it.
// Links are followed before the check, since a task can make them.
func (c Catalog) allowed(image, taskDir string) (string, error) {
	path := image
	if !filepath.IsAbs(path) && taskDir != "" {
		path = filepath.Join(taskDir, path)
	}
	if !filepath.IsAbs(path) {
		return "", provider.Permanentf("image %q: want an absolute path", image)
	}
	path, err := filepath.EvalSymlinks(path)
	if err != nil {
		return "", provider.Permanentf("image %q: %w", image, err)
	}
	for _, dir := range append([]string{taskDir}, c.Dirs...) {
		if real, err := filepath.EvalSymlinks(dir); dir != "" && err == nil && strings.HasPrefix(path, strings.TrimSuffix(real, "/")+"/") {
			return path, nil
		}
	}
	return "", provider.Permanentf("image %q: not in the task's directory and not below one of image_dirs (%s)", image, strings.Join(c.Dirs, ", "))
}
