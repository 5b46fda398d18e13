package lease

import (
	"net/netip"
	"net/url"
	"strings"
	"unicode/utf8"

	"golang.org/x/net/idna"
	"golang.org/x/net/publicsuffix"
)

// maxTarget is the longest DNS name with a scheme, a port and a path that a
// client may have left on.
const maxTarget = 2048

// Scope says how far a target reaches.
type Scope string

// The scopes.
const (
	// ScopeHost takes each host and port for a site of its own.
	ScopeHost Scope = "host"
	// ScopeDomain takes all hosts under one registrable domain, by the public
	// suffix list, for one site.
	ScopeDomain Scope = "domain"
)

// NormalizeTarget brings a URL, or a host with or without a port, to the one
// form that cooldowns are kept under: lower case, punycode, no trailing dot, no
// default port. Empty stays empty. Its error is a *FieldError.
func NormalizeTarget(text string, scope Scope) (string, error) {
	if text == "" {
		return "", nil
	}
	fail := func(want string) (string, error) {
		return "", &FieldError{Field: "target", Value: text, Pos: -1, Want: want}
	}
	if len(text) > maxTarget {
		return fail("want a host or a URL of at most 2048 characters")
	}
	host, port, ok := splitTarget(text)
	if !ok {
		return fail("want a host such as example.com, host:port, or an http or https URL")
	}
	if addr, err := netip.ParseAddr(host); err == nil {
		host = addr.Unmap().WithZone("").String()
		if addr.Unmap().Is6() {
			host = "[" + host + "]"
		}
		return joinTarget(host, port, scope), nil
	}
	ascii, ok := asciiHost(strings.TrimSuffix(host, "."))
	if !ok {
		return fail("want a valid host name")
	}
	if scope == ScopeDomain {
		if domain, err := publicsuffix.EffectiveTLDPlusOne(ascii); err == nil {
			ascii = domain
		}
	}
	return joinTarget(ascii, port, scope), nil
}

// hosts maps names as a browser does before a look-up. Underscores are not legal
// in host names (RFC 1123) but occur, so the characters are checked here.
var hosts = idna.New(idna.MapForLookup(), idna.BidiRule(), idna.Transitional(false),
	idna.StrictDomainName(false), idna.VerifyDNSLength(true))

// asciiHost is the name in punycode and lower case.
func asciiHost(host string) (string, bool) {
	if !utf8.ValidString(host) {
		return "", false
	}
	ascii, err := hosts.ToASCII(host)
	if err != nil || strings.HasSuffix(ascii, ".") {
		return "", false
	}
	for i := 0; i < len(ascii); i++ {
		c := ascii[i]
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' && c != '_' && c != '.' {
			return "", false
		}
	}
	for label := range strings.SplitSeq(ascii, ".") {
		if label == "" || label[0] == '-' || label[len(label)-1] == '-' {
			return "", false
		}
	}
	again, err := hosts.ToASCII(ascii)
	return ascii, err == nil && again == ascii
}

// splitTarget takes the host, without brackets, and the port out of a URL or of
// host:port.
func splitTarget(text string) (host, port string, ok bool) {
	if !strings.Contains(text, "://") {
		if strings.Count(text, ":") > 1 && !strings.HasPrefix(text, "[") {
			if _, err := netip.ParseAddr(text); err == nil {
				return text, "", true
			}
		}
		text = "//" + text
	}
	u, err := url.Parse(text)
	if err != nil || u.User != nil || u.Hostname() == "" {
		return "", "", false
	}
	switch u.Scheme {
	case "", "http", "https", "ws", "wss":
	default:
		return "", "", false
	}
	port = u.Port()
	if port == "80" || port == "443" {
		port = ""
	}
	if n := len(port); n > 5 || n > 0 && port[0] == '0' {
		return "", "", false
	}
	return u.Hostname(), port, true
}

// joinTarget puts a port that is not a default one back. A whole domain has no
// port.
func joinTarget(host, port string, scope Scope) string {
	if port == "" || scope == ScopeDomain {
		return host
	}
	return host + ":" + port
}
