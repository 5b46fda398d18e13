package probe

import (
	"net"
	"strconv"
)

// address is host:port, with brackets around an IPv6 address.
func (p Proxy) address() string { return net.JoinHostPort(p.Host, strconv.Itoa(p.Port)) }

func validPort(port string) bool {
	number, err := strconv.Atoi(port)
	return err == nil && number >= 1 && number <= 65535
}
