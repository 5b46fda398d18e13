package gcp

import (
	"errors"
	"fmt"
	"maps"
	"net/url"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/egress-proxies/egress/provider"
)

// Type is the value of `type` that chooses this provider.
const Type = "gcp"

// options are the keys of the provider block.
type options struct {
	Project            string            `option:"project,required"`
	Zones              []string          `option:"zones,required"`
	CredentialsFile    string            `option:"credentials_file"`
	Endpoint           string            `option:"endpoint"`
	Network            string            `option:"network"`
	Subnetwork         string            `option:"subnetwork"`
	NetworkTags        []string          `option:"network_tags"`
	ExternalAddress    *bool             `option:"external_address"`
	ClientAddress      string            `option:"client_address"`
	DefaultImage       string            `option:"default_image"`
	DefaultMachineType string            `option:"default_machine_type"`
	DiskMiB            int64             `option:"disk_mib"`
	DiskType           string            `option:"disk_type"`
	ServiceAccount     string            `option:"service_account"`
	Scopes             []string          `option:"scopes"`
	Provisioning       string            `option:"provisioning"`
	OnPreemption       string            `option:"on_preemption"`
	UserDataKey        string            `option:"user_data_key"`
	Labels             map[string]string `option:"labels"`
	CallTimeout        time.Duration     `option:"call_timeout"`
}

// settings are options that were found valid, with their defaults.
type settings struct {
	options
	external bool
}

// The defaults. The image is one that reads cloud-init user-data; Google's
// Debian images don't.
const (
	defaultImage       = "ubuntu-os-cloud/ubuntu-2404-lts-amd64"
	defaultMachineType = "e2-small"
	defaultDiskType    = "pd-balanced"
	defaultCallTimeout = 30 * time.Second
	cloudPlatform      = "https://www.googleapis.com/auth/cloud-platform"
)

// Values of the keys that choose.
const (
	addressExternal = "external"
	addressInternal = "internal"
	standard        = "standard"
	spot            = "spot"
	preemptStop     = "stop"
	preemptDelete   = "delete"
	userData        = "user-data"
	startupScript   = "startup-script"
)

// What Compute Engine accepts (its reference, and RFC 1035 for zones and tags).
var (
	projectPattern = regexp.MustCompile(`^([a-z0-9.-]+:)?[a-z][a-z0-9-]{4,28}[a-z0-9]$`)
	zonePattern    = regexp.MustCompile(`^[a-z]+-[a-z]+[0-9]+-[a-z]$`)
	tagPattern     = regexp.MustCompile(`^[a-z]([a-z0-9-]{0,61}[a-z0-9])?$`)
	keyPattern     = regexp.MustCompile(`^[a-z][a-z0-9_-]{0,62}$`)
	valuePattern   = regexp.MustCompile(`^[a-z0-9_-]{0,63}$`)
)

// parse decodes and validates; every problem is told at once.
func parse(raw map[string]any) (settings, error) {
	var o options
	if err := provider.DecodeOptions(raw, &o); err != nil {
		return settings{}, err
	}
	s := settings{options: o, external: o.ExternalAddress == nil || *o.ExternalAddress}
	s.setDefaults()
	return s, errors.Join(slices.Concat(s.checkPlaces(), s.checkChoices(), s.checkLabels())...)
}

func (s *settings) setDefaults() {
	address := addressExternal
	if !s.external {
		address = addressInternal
	}
	for target, value := range map[*string]string{
		&s.ClientAddress: address, &s.DefaultImage: defaultImage, &s.DefaultMachineType: defaultMachineType,
		&s.DiskType: defaultDiskType, &s.Provisioning: standard, &s.OnPreemption: preemptStop, &s.UserDataKey: userData,
	} {
		if *target == "" {
			*target = value
		}
	}
	if s.Network == "" && s.Subnetwork == "" {
		s.Network = "global/networks/default"
	}
	if s.CallTimeout == 0 {
		s.CallTimeout = defaultCallTimeout
	}
	if len(s.Scopes) == 0 {
		s.Scopes = []string{cloudPlatform}
	}
}

func (s *settings) checkPlaces() (problems []error) {
	if !projectPattern.MatchString(s.Project) {
		problems = append(problems, fmt.Errorf("project %q: want the id of a project, such as \"my-project-123\"", s.Project))
	}
	if len(s.Zones) == 0 {
		problems = append(problems, errors.New(`zones: want at least one, such as ["europe-west1-b"]`))
	}
	for _, zone := range s.Zones {
		if err := checkZone(zone); err != nil {
			problems = append(problems, err)
		}
	}
	if s.CredentialsFile != "" && !filepath.IsAbs(s.CredentialsFile) {
		problems = append(problems, fmt.Errorf("credentials_file %q: want an absolute path, or none for Application Default Credentials", s.CredentialsFile))
	}
	if err := checkEndpoint(s.Endpoint); err != nil {
		problems = append(problems, err)
	}
	if s.CallTimeout < time.Second {
		problems = append(problems, fmt.Errorf("call_timeout %q: want at least 1s", s.CallTimeout))
	}
	for _, tag := range s.NetworkTags {
		if !tagPattern.MatchString(tag) {
			problems = append(problems, fmt.Errorf("network_tags %q: want lower-case letters, digits and -", tag))
		}
	}
	return problems
}

func checkZone(zone string) error {
	if zonePattern.MatchString(zone) {
		return nil
	}
	return fmt.Errorf("zone %q: want a zone such as \"europe-west1-b\"", zone)
}

// checkEndpoint refuses to send tokens over a network in the clear.
func checkEndpoint(endpoint string) error {
	if endpoint == "" {
		return nil
	}
	u, err := url.Parse(endpoint)
	if err != nil || u.Host == "" || (u.Scheme != "https" && u.Scheme != "http") {
		return fmt.Errorf("endpoint %q: want https://host, or none for Google's own", endpoint)
	}
	if host := u.Hostname(); u.Scheme == "http" && host != "localhost" && host != "::1" && !strings.HasPrefix(host, "127.") {
		return fmt.Errorf("endpoint %q: want https: access tokens would be sent in the clear", endpoint)
	}
	return nil
}

func (s *settings) checkChoices() (problems []error) {
	for _, c := range []struct {
		key, value string
		allowed    []string
	}{
		{"client_address", s.ClientAddress, []string{addressExternal, addressInternal}},
		{"provisioning", s.Provisioning, []string{standard, spot}},
		{"on_preemption", s.OnPreemption, []string{preemptStop, preemptDelete}},
		{"user_data_key", s.UserDataKey, []string{userData, startupScript}},
	} {
		if !slices.Contains(c.allowed, c.value) {
			problems = append(problems, fmt.Errorf("%s %q: want one of %s", c.key, c.value, strings.Join(c.allowed, ", ")))
		}
	}
	if s.ClientAddress == addressExternal && !s.external {
		problems = append(problems, errors.New(`client_address "external": there is none with external_address = false`))
	}
	if s.DiskMiB < 0 || s.DiskMiB > 64<<20 {
		problems = append(problems, fmt.Errorf("disk_mib %d: want 0, which is the image's size, or more", s.DiskMiB))
	}
	if _, err := imageURL(s.Project, s.DefaultImage); err != nil {
		problems = append(problems, fmt.Errorf("default_%w", err))
	}
	return problems
}

func (s *settings) checkLabels() (problems []error) {
	for _, key := range slices.Sorted(maps.Keys(s.Labels)) {
		switch value := s.Labels[key]; {
		case strings.HasPrefix(key, "egress-"):
			problems = append(problems, fmt.Errorf("labels: key %q: keys that begin with egress- are the provider's own", key))
		case !keyPattern.MatchString(key):
			problems = append(problems, fmt.Errorf("labels: key %q: want a lower-case letter, then up to 62 of a-z, 0-9, - and _", key))
		case !valuePattern.MatchString(value):
			problems = append(problems, fmt.Errorf("labels: value %q of %q: want up to 63 of a-z, 0-9, - and _", value, key))
		}
	}
	return problems
}

// regionOf is the region of a zone: its name without the last part.
func regionOf(zone string) string {
	if i := strings.LastIndexByte(zone, '-'); i > 0 {
		return zone[:i]
	}
	return zone
}
