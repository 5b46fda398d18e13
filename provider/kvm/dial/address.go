// Package dial reaches the libvirt socket of a host: a socket on this machine,
// or one on another machine forwarded over SSH.
package dial

import (
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"
)

// DefaultSocket is where libvirtd, and since libvirt 5.6 the compatibility
// proxy of virtqemud, listens on every current distribution.
const DefaultSocket = "/run/libvirt/libvirt-sock"

// Address says how a host is reached.
type Address struct {
	// SSH is the host and port of the SSH server; empty for a local socket.
	SSH string
	// User is the account on the SSH server.
	User string
	// Socket is the path of the libvirt socket on the host.
	Socket string
}

// ParseAddress reads "unix:///run/libvirt/libvirt-sock" or
// "ssh://user@host:22". user and socket fill in what the address leaves out;
// saying either twice, and differently, is an error.
func ParseAddress(address, user, socket string) (Address, error) {
	shown := address
	bad := func(format string, args ...any) (Address, error) {
		return Address{}, fmt.Errorf("address %q: %s", shown, fmt.Sprintf(format, args...))
	}
	u, err := url.Parse(address)
	if err == nil && u.User != nil {
		shown = u.Redacted()
	}
	if err != nil {
		return bad("%v: want unix:///path or ssh://user@host:22", err)
	}
	if u.RawQuery != "" || u.Fragment != "" {
		return bad("a query or fragment has no meaning here")
	}
	switch u.Scheme {
	case "unix":
		if u.Host != "" || !strings.HasPrefix(u.Path, "/") {
			return bad("want an absolute path with three slashes: unix:///run/libvirt/libvirt-sock")
		}
		if user != "" {
			return bad("user %q: a local socket is opened as the user that Nomad runs as", user)
		}
		if socket != "" && socket != u.Path {
			return bad("socket %q: the address names the socket already", socket)
		}
		return Address{Socket: u.Path}, nil
	case "ssh":
		return parseSSH(u, user, socket, bad)
	default:
		return bad("want unix:///path or ssh://user@host:22")
	}
}

func parseSSH(u *url.URL, user, socket string, bad func(string, ...any) (Address, error)) (Address, error) {
	if u.Hostname() == "" {
		return bad("want ssh://user@host:22")
	}
	if u.Path != "" && u.Path != "/" {
		return bad("path %q: give the libvirt socket in the key socket", u.Path)
	}
	if _, ok := u.User.Password(); ok {
		return bad("want no password: only keys are used")
	}
	if name := u.User.Username(); name != "" {
		if user != "" && user != name {
			return bad("user %q: the address says %q", user, name)
		}
		user = name
	}
	if user == "" {
		return bad("no user: want ssh://user@host:22 or the key user")
	}
	if socket == "" {
		socket = DefaultSocket
	}
	if !strings.HasPrefix(socket, "/") {
		return bad("socket %q: want an absolute path", socket)
	}
	port := u.Port()
	if port == "" {
		port = "22"
	}
	if number, err := strconv.ParseUint(port, 10, 16); err != nil || number == 0 {
		return bad("port %q: want a number from 1 to 65535", port)
	}
	return Address{SSH: net.JoinHostPort(u.Hostname(), port), User: user, Socket: socket}, nil
}

// String is the address as it would be configured, normalized: two that reach
// the same daemon in the same way read the same.
func (a Address) String() string {
	if a.SSH == "" {
		return "unix://" + a.Socket
	}
	return "ssh://" + a.User + "@" + strings.ToLower(a.SSH) + " (socket " + a.Socket + ")"
}

// Place is where the daemon is, without the account: two addresses of one
// place would make one host count twice.
func (a Address) Place() string { return strings.ToLower(a.SSH) + a.Socket }
