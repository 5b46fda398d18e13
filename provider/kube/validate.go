package kube

import (
	"strings"
	"unicode"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/egress-proxies/egress/provider"
)

// bcryptMax is how many bytes of a password bcrypt looks at.
const bcryptMax = 72

// Validate says what is wrong with a spec before anything is asked.
func (p *Provider) Validate(spec provider.Spec) error {
	refused := map[string]bool{
		"machine_type": spec.MachineType != "", "network_config": len(spec.NetworkConfig) > 0,
		"endpoint": spec.Endpoint != provider.Endpoint{}, "bind": spec.Bind != "",
	}
	for _, key := range []string{"machine_type", "network_config", "endpoint", "bind"} {
		if refused[key] {
			return provider.Permanentf("%q is set: a pod has no use for it, remove it", key)
		}
	}
	if spec.Port < 1 || spec.Port > 65535 {
		return provider.Permanentf("\"port\": %d: want 1 to 65535", spec.Port)
	}
	if spec.Zone != "" && len(validation.IsValidLabelValue(spec.Zone)) > 0 {
		return provider.Permanentf("\"zone\": %q: want a value of the node label %s", spec.Zone, zoneLabel)
	}
	if spec.Port < 1024 && p.settings.HostNetwork {
		return provider.Permanentf("\"port\": %d: a pod without privileges can't use a port below 1024 of its node", spec.Port)
	}
	if p.runsSquid(spec) && !spec.Auth.IsZero() {
		return checkAuth(spec.Auth)
	}
	return nil
}

// checkAuth refuses what squid's password file can't hold.
func checkAuth(auth provider.Credentials) error {
	user, password := auth.Username, auth.Password
	switch {
	case user == "" || strings.ContainsAny(user[:1], "# "):
		return provider.Permanentf("\"auth\": the user name %q: squid wants one that doesn't begin with a space or #", user)
	case strings.ContainsRune(user, ':') || strings.ContainsFunc(user, unicode.IsControl):
		return provider.Permanentf("\"auth\": the user name %q: want no colon and no control character", user)
	case strings.ContainsFunc(password, unicode.IsControl):
		return provider.Permanentf("\"auth\": the password of %q has a control character: squid takes none", user)
	case len(password) > bcryptMax:
		return provider.Permanentf("\"auth\": the password of %q has %d bytes: squid takes up to %d", user, len(password), bcryptMax)
	}
	return nil
}

// runsSquid is true when the proxy is squid with our configuration.
func (p *Provider) runsSquid(spec provider.Spec) bool { return p.settings.squid && spec.Command == "" }
