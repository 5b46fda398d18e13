package registry

import (
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Consul's limits of a service's meta (agent/structs: validateMetadata).
const (
	maxPairs = 64
	maxKey   = 128
	maxValue = 512
)

// reserved are the meta keys that the registry writes itself.
var reserved = []string{
	"alloc", "auth", "cluster", "exit_ip", "group", "instance", "job", "max_leases",
	"namespace", "node", "provider", "scheme", "task", "zone",
}

// MaxAttributes is how many of Consul's pairs are left for a task.
var MaxAttributes = maxPairs - len(reserved)

var (
	keyForm     = regexp.MustCompile(`^[A-Za-z0-9_-]+$`)
	serviceForm = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?$`)
)

// CheckAttributes says whether attributes can be published: at most
// MaxAttributes, keys of letters, digits, - and _ up to 128 characters that are
// not reserved, values of up to 512 bytes. All problems are told at once; each
// names the key, the value and what is expected.
func CheckAttributes(attributes map[string]string) error {
	var problems []error
	if len(attributes) > MaxAttributes {
		problems = append(problems, fmt.Errorf("%d attributes: want at most %d, since Consul takes %d meta pairs and %d are egress's own",
			len(attributes), MaxAttributes, maxPairs, len(reserved)))
	}
	keys := make([]string, 0, len(attributes))
	for key := range attributes {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	for _, key := range keys {
		if err := checkKey(key); err != nil {
			problems = append(problems, err)
		}
		if err := checkValue(key, attributes[key]); err != nil {
			problems = append(problems, err)
		}
	}
	return errors.Join(problems...)
}

func checkKey(key string) error {
	switch {
	case slices.Contains(reserved, key):
		return fmt.Errorf("key %q: is written by egress itself: want another name", key)
	case strings.HasPrefix(strings.ToLower(key), "consul-"):
		return fmt.Errorf("key %q: the prefix consul- belongs to Consul: want another name", key)
	case !keyForm.MatchString(key):
		return fmt.Errorf("key %q: want letters, digits, - and _", key)
	case len(key) > maxKey:
		return fmt.Errorf("key %q: has %d characters: want at most %d", key[:32]+"…", len(key), maxKey)
	}
	return nil
}

func checkValue(key, value string) error {
	switch {
	case len(value) > maxValue:
		return fmt.Errorf("key %q: the value has %d bytes: want at most %d", key, len(value), maxValue)
	case !utf8.ValidString(value):
		return fmt.Errorf("key %q: value %q: want UTF-8", key, value)
	}
	return nil
}

// CheckService says whether name can be a Consul service name that DNS finds
// too: letters, digits and dashes, at most 63.
func CheckService(name string) error {
	if len(name) > 63 || !serviceForm.MatchString(name) {
		return fmt.Errorf("service name %q: want at most 63 letters, digits and dashes, with a letter or digit at both ends", name)
	}
	return nil
}

// check says whether the endpoint can be published.
func (e Endpoint) check(meta map[string]string) error {
	var problems []error
	if len(e.Name) > 63 || !serviceForm.MatchString(e.Name) {
		problems = append(problems, fmt.Errorf("name %q: want a DNS label", e.Name))
	}
	if err := CheckService(e.Service); err != nil {
		problems = append(problems, err)
	}
	if _, err := netip.ParseAddr(e.Address); err != nil && (e.Address == "" || strings.ContainsAny(e.Address, " :/@[]")) {
		problems = append(problems, fmt.Errorf("address %q: want an IP address or a DNS name", e.Address))
	}
	if e.Port < 1 || e.Port > 65535 {
		problems = append(problems, fmt.Errorf("port %d: want 1 to 65535", e.Port))
	}
	if e.MaxLeases < 0 {
		problems = append(problems, fmt.Errorf("max_leases %s: want 0 or more", strconv.Itoa(e.MaxLeases)))
	}
	if err := CheckAttributes(e.Attributes); err != nil {
		problems = append(problems, err)
	}
	for _, key := range reserved {
		if err := checkValue(key, meta[key]); err != nil {
			problems = append(problems, err)
		}
	}
	return errors.Join(problems...)
}
