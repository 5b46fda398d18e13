package driver

import (
	"errors"
	"net"
	"net/netip"
	"net/url"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/net/http/httpguts"
)

// What Nomad's and Consul's clients make of a wrong address shows only when
// they use it, long after the agent has started. So it is read here first.

// consulAddress checks what stands in consul { address }: HOST:PORT, or a URL
// with http, https or unix.
func (p *problems) consulAddress(key, value string) {
	scheme, rest, isURL := strings.Cut(value, "://")
	var err error
	switch {
	case value == "":
	case !isURL:
		err = checkHostPort(value, 1)
	case scheme == "unix":
		if !strings.HasPrefix(rest, "/") {
			err = errors.New("after unix:// comes an absolute path")
		}
	default:
		err = checkRoot(value)
	}
	if err != nil {
		p.add(key, redacted(value), `want HOST:PORT such as "127.0.0.1:8500", or a URL with http, https or unix: `+err.Error())
	}
}

// nomadAddress checks the URL of an agent.
func (p *problems) nomadAddress(key, value string) {
	path, isUnix := strings.CutPrefix(value, "unix://")
	if value == "" || isUnix && strings.HasPrefix(path, "/") {
		return
	}
	if err := checkRoot(value); err != nil {
		p.add(key, redacted(value), `want a URL such as "http://127.0.0.1:4646": `+err.Error())
	}
}

// listenAddress checks what is listened on: an address of the node, or none for
// every one, and a port.
func (p *problems) listenAddress(key, value string) {
	if err := checkListen(value); err != nil {
		p.add(key, value, `want an address and a port, such as "127.0.0.1:9464": `+err.Error())
	}
}

// path checks a file's name, which is not looked for: it may be on its way.
func (p *problems) path(key, value string) {
	if value != "" && !filepath.IsAbs(value) {
		p.add(key, value, "want an absolute path")
	}
}

// checkRoot accepts the http or https URL of an API, with nothing that its
// client would drop or send.
func checkRoot(value string) error {
	parsed, err := url.Parse(value)
	switch {
	case err != nil:
		var inner *url.Error
		if errors.As(err, &inner) {
			err = inner.Err // without the whole of it, which may hold a password
		}
		return err
	case parsed.Scheme != "http" && parsed.Scheme != "https":
		return errors.New("the scheme is not http or https")
	case parsed.User != nil:
		return errors.New("a user can't be part of it")
	case parsed.RawQuery != "" || parsed.Fragment != "" || strings.HasSuffix(value, "?") || strings.HasSuffix(value, "#"):
		return errors.New("a query or a fragment can't be part of it")
	case parsed.Port() == "" && !strings.HasSuffix(parsed.Host, ":"):
		return checkHost(parsed.Hostname())
	default:
		return checkHostPort(parsed.Host, 1)
	}
}

// checkHostPort accepts a host and a port of at least least.
func checkHostPort(value string, least uint64) error {
	host, port, err := net.SplitHostPort(value)
	if err != nil {
		var inner *net.AddrError
		if errors.As(err, &inner) {
			return errors.New(inner.Err)
		}
		return err
	}
	if number, err := strconv.ParseUint(port, 10, 16); err != nil || number < least {
		return errors.New("the port is not a number from 1 to 65535")
	}
	return checkHost(host)
}

func checkHost(host string) error {
	if _, err := netip.ParseAddr(host); err == nil {
		return nil
	}
	if host == "" || !httpguts.ValidHostHeader(host) || strings.ContainsAny(host, `:/@[]%\?#" `) {
		return errors.New("the host is not a name or an IP address")
	}
	return nil
}

func checkListen(value string) error {
	if host, port, err := net.SplitHostPort(value); err == nil && host == "" {
		value = net.JoinHostPort("localhost", port)
	}
	return checkHostPort(value, 0)
}

// redacted is a value without what may be a password in it.
func redacted(value string) string {
	at := strings.LastIndexByte(value, '@')
	if at < 0 {
		return value
	}
	scheme, _, ok := strings.Cut(value[:at], "://")
	if !ok {
		return "…" + value[at:]
	}
	return scheme + "://…" + value[at:]
}
