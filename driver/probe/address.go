package probe

import (
	"encoding/json"
	"errors"
	"net"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
)

// address is host:port, with brackets around an IPv6 address.
func (p Proxy) address() string { return net.JoinHostPort(p.Host, strconv.Itoa(p.Port)) }

func validPort(port string) bool {
	number, err := strconv.Atoi(port)
	return err == nil && number >= 1 && number <= 65535
}

// describe is a URL as messages show it: credentials and the query, which may
// hold a key, stay out.
func describe(target *url.URL) string {
	return target.Scheme + "://" + target.Host + target.EscapedPath()
}

// hostPort is the target as CONNECT names it.
func hostPort(target *url.URL) string {
	port := target.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[target.Scheme]
	}
	return net.JoinHostPort(target.Hostname(), port)
}

// exitIPKeys are the names under which services that echo the client's address
// give it, most telling first.
var exitIPKeys = []string{"ip", "ip_address", "address", "addr", "origin", "query", "client_ip", "remote_addr"}

var (
	errNoAddress    = errors.New("the body holds no IP address")
	errManyAddress  = errors.New("the body holds more than one IP address")
	errUselessExit  = errors.New("the body holds an address that no host can have")
	errBodyTooLarge = errors.New("the body is too large for an address")
)

// parseExitIP finds the address in the body of an exit-IP URL: plain text, a
// JSON string, or a JSON object with the address under one of exitIPKeys. An
// IPv4-mapped IPv6 address becomes the IPv4 address.
func parseExitIP(body []byte) (netip.Addr, error) {
	if len(body) > maxExitBody {
		return netip.Addr{}, errBodyTooLarge
	}
	text := strings.TrimSpace(string(body))
	var object map[string]any
	var quoted string
	switch {
	case strings.HasPrefix(text, "{"):
		if err := json.Unmarshal([]byte(text), &object); err != nil {
			return netip.Addr{}, errNoAddress
		}
		return exitIPOf(object)
	case strings.HasPrefix(text, `"`):
		if err := json.Unmarshal([]byte(text), &quoted); err != nil {
			return netip.Addr{}, errNoAddress
		}
		text = strings.TrimSpace(quoted)
	}
	return parseAddr(text)
}

func exitIPOf(object map[string]any) (netip.Addr, error) {
	for _, key := range exitIPKeys {
		if text, ok := object[key].(string); ok {
			return parseAddr(strings.TrimSpace(text))
		}
	}
	return netip.Addr{}, errNoAddress
}

func parseAddr(text string) (netip.Addr, error) {
	addr, err := netip.ParseAddr(text)
	switch {
	case err != nil && strings.ContainsAny(text, ",;"):
		// A list of X-Forwarded-For: which of them is the exit can't be told.
		return netip.Addr{}, errManyAddress
	case err != nil:
		return netip.Addr{}, errNoAddress
	}
	addr = addr.Unmap()
	if addr.Zone() != "" || addr.IsUnspecified() || addr.IsMulticast() || addr.IsLinkLocalUnicast() {
		return netip.Addr{}, errUselessExit
	}
	return addr, nil
}
