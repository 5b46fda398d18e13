// Package forward is the built-in forward proxy: CONNECT tunnels, whose bytes
// the kernel moves from socket to socket, and plain http in absolute form.
//
// It uses the standard library only, since an instance of it runs before the
// rest of the binary is initialised (see provider/process/early).
package forward

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"time"
)

// Config is everything that a Server wants to know. Default fills the zero
// values that have one.
type Config struct {
	// Listen is the address and port, "127.0.0.1:3128"; ":3128" is every
	// address of the node, IPv4 and IPv6.
	Listen string `json:"listen"`
	// Bind is the source address of outgoing connections; only targets of its
	// family can then be reached. Zero leaves it to the kernel.
	Bind netip.Addr `json:"bind,omitzero"`
	// Username and Password are what clients must give. Both empty asks for
	// nothing.
	Username string `json:"username,omitempty"`
	Password string `json:"password,omitempty"`
	// CredentialsFile is a JSON file {"username":"u","password":"p"} that is
	// read at the start and again by Reload, in place of the two above.
	CredentialsFile string `json:"credentials_file,omitempty"`
	// ControlFD is the descriptor of a listening socket over which Rotate is
	// heard; 0 is none.
	ControlFD int `json:"control_fd,omitempty"`
	// AllowClients are the networks that clients may come from. The node itself
	// always may: the probe that proves the proxy comes from there.
	AllowClients []netip.Prefix `json:"allow_clients"`
	// AllowTargets are networks that may be reached although they are private,
	// link-local, loopback or otherwise not the public internet.
	AllowTargets []netip.Prefix `json:"allow_targets,omitempty"`
	// IdleTimeout ends a connection on which nothing moved for so long; 0 is
	// never.
	IdleTimeout time.Duration `json:"idle_timeout,omitempty"`
	// MaxDuration ends a tunnel or a request that takes longer; 0 is never.
	MaxDuration time.Duration `json:"max_duration,omitempty"`
	// DialTimeout bounds the way to a target, name resolution included; 0 is
	// 30 seconds.
	DialTimeout time.Duration `json:"dial_timeout,omitempty"`
	// DrainTimeout is how long tunnels may go on after SIGTERM; 0 is 30
	// seconds.
	DrainTimeout time.Duration `json:"drain_timeout,omitempty"`
	// MaxHeaderBytes bounds a request's header; 0 is 64 KiB.
	MaxHeaderBytes int `json:"max_header_bytes,omitempty"`
	// AccessLog is the format of the lines on standard output: "json", "text"
	// or "off"; empty is "json".
	AccessLog string `json:"access_log,omitempty"`
}

// PrivateClients are the networks that clients may come from unless somebody
// chose: this node, and the private networks of RFC 1918 and RFC 4193. A proxy
// that is open to the internet must be asked for.
func PrivateClients() []netip.Prefix {
	return []netip.Prefix{
		netip.MustParsePrefix("127.0.0.0/8"),
		netip.MustParsePrefix("::1/128"),
		netip.MustParsePrefix("10.0.0.0/8"),
		netip.MustParsePrefix("172.16.0.0/12"),
		netip.MustParsePrefix("192.168.0.0/16"),
		netip.MustParsePrefix("fc00::/7"),
	}
}

// DefaultIdleTimeout is the idle limit unless somebody chose: longer than the
// slowest answer a crawler waits for, shorter than the life of a dead peer.
const DefaultIdleTimeout = 10 * time.Minute

// withDefaults fills the zero values.
func (c Config) withDefaults() Config {
	if c.DialTimeout == 0 {
		c.DialTimeout = 30 * time.Second
	}
	if c.DrainTimeout == 0 {
		c.DrainTimeout = 30 * time.Second
	}
	if c.MaxHeaderBytes == 0 {
		c.MaxHeaderBytes = 64 << 10
	}
	if c.AccessLog == "" {
		c.AccessLog = "json"
	}
	return c
}

// Validate names every value that can't work and what is expected.
func (c Config) Validate() error {
	var problems []error
	problem := func(format string, args ...any) { problems = append(problems, fmt.Errorf(format, args...)) }
	host, port, err := net.SplitHostPort(c.Listen)
	if err != nil {
		problem("listen %q: want ADDRESS:PORT", c.Listen)
	} else {
		if _, err := netip.ParseAddr(host); host != "" && err != nil {
			problem("listen %q: address %q: want an IP address", c.Listen, host)
		}
		if n, err := strconv.ParseUint(port, 10, 16); err != nil {
			problem("listen %q: port %q: want a number up to 65535", c.Listen, port)
		} else if strconv.FormatUint(n, 10) != port {
			problem("listen %q: port %q: want %d", c.Listen, port, n)
		}
	}
	if c.Bind.IsValid() && (c.Bind.IsUnspecified() || c.Bind.IsMulticast()) {
		problem("bind %s: want one address of this node", c.Bind)
	}
	if strings.Contains(c.Username, ":") {
		problem("username: a colon can't be part of it (RFC 7617)")
	}
	if c.Username == "" && c.Password != "" {
		problem("username: empty although a password is set")
	}
	if c.CredentialsFile != "" && c.Username != "" {
		problem("credentials file %q: a username is set as well", c.CredentialsFile)
	}
	for _, limit := range []struct {
		name  string
		value time.Duration
	}{
		{"idle timeout", c.IdleTimeout}, {"max duration", c.MaxDuration},
		{"dial timeout", c.DialTimeout}, {"drain timeout", c.DrainTimeout},
	} {
		if limit.value < 0 {
			problem("%s %s: want 0 or more", limit.name, limit.value)
		}
	}
	if c.MaxHeaderBytes < 0 {
		problem("max header bytes %d: want 0 or more", c.MaxHeaderBytes)
	}
	switch c.AccessLog {
	case "", "json", "text", "off":
	default:
		problem("access log %q: want json, text or off", c.AccessLog)
	}
	return errors.Join(problems...)
}
