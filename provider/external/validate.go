package external

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/egress-proxies/egress/provider"
)

// Validate checks the endpoint and refuses what can't be asked of it.
func (p *Provider) Validate(spec provider.Spec) error {
	var problems []error
	problem := func(format string, args ...any) { problems = append(problems, fmt.Errorf(format, args...)) }
	for _, unused := range []struct {
		key string
		set bool
	}{
		{"machine_type", spec.MachineType != ""}, {"image", spec.Image != ""},
		{"user_data", len(spec.UserData) > 0}, {"network_config", len(spec.NetworkConfig) > 0},
		{"command", spec.Command != ""}, {"args", len(spec.Args) > 0}, {"bind", spec.Bind != ""},
	} {
		if unused.set {
			problem("%s: the external provider launches nothing and has no use for it", unused.key)
		}
	}
	if spec.Zone != "" && spec.Zone != Zone {
		problem("zone: %q: the external provider knows only %q", spec.Zone, Zone)
	}
	if spec.Endpoint.Host == "" {
		problem(`endpoint: missing: want endpoint { host = "proxy.example"  port = 3128 }`)
	} else if err := checkHost(spec.Endpoint.Host); err != nil {
		problems = append(problems, err)
	}
	if port := spec.Endpoint.Port; port < 1 || port > 65535 {
		problem("endpoint: port %d: want 1 to 65535", port)
	}
	if strings.Contains(spec.Auth.Username, ":") {
		problem("auth: the username has a colon, which Basic authentication can't carry (RFC 7617)")
	}
	if err := errors.Join(problems...); err != nil {
		return provider.Permanentf("%w", err)
	}
	return nil
}

// checkHost accepts an IP address or a host name of RFC 1123. An underscore is
// let through, since names in use have it.
func checkHost(host string) error {
	if addr, err := netip.ParseAddr(host); err == nil {
		if addr.IsUnspecified() || addr.IsMulticast() || addr.Zone() != "" {
			return fmt.Errorf("endpoint: host %q: want an address that can be connected to", host)
		}
		return nil
	}
	name := strings.TrimSuffix(host, ".")
	if len(name) > 253 {
		return fmt.Errorf("endpoint: host %q: want at most 253 characters", host)
	}
	for label := range strings.SplitSeq(name, ".") {
		if label == "" || len(label) > 63 || strings.HasPrefix(label, "-") || strings.HasSuffix(label, "-") {
			return fmt.Errorf("endpoint: host %q: want a host name or an IP address, without scheme and port", host)
		}
		for _, r := range label {
			letter := (r >= 'a' && r <= 'z') || (r >= 'A' && r <= 'Z')
			if !letter && (r < '0' || r > '9') && r != '-' && r != '_' {
				return fmt.Errorf("endpoint: host %q: character %q: want a host name or an IP address, without scheme and port", host, r)
			}
		}
	}
	return nil
}
