package kube

import (
	"fmt"
	"strings"
)

// Where the files of the Secret are in the container.
const (
	filesDir     = "/etc/egress"
	squidFile    = "squid.conf"
	passwordFile = "htpasswd"
	userDataFile = "user-data"
	// basicHelper checks passwords; its place in Debian's and Ubuntu's squid.
	basicHelper = "/usr/lib/squid/basic_ncsa_auth"
)

// proxyConfig is what squid.conf depends on.
type proxyConfig struct {
	port            int
	passwords       string // path of the password file; empty asks for none
	allowClients    []string
	allowTargets    []string // what of the networks that aren't public may be reached
	fileDescriptors int
}

// squidCommand runs squid in the foreground and as one process, which needs no
// shared memory.
func squidCommand(conf string) []string { return []string{"squid", "-N", "-f", conf} }

// squidConf is a forward proxy that keeps nothing, tells nothing of its clients
// and writes nothing outside its standard output. It takes CONNECT to any port,
// unlike Debian's own configuration.
func squidConf(c proxyConfig) string {
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	line("# Written by egress. A change is lost with the pod.")
	line("http_port %d", c.port)
	line("# Without a name squid looks its own up, and starts 10 s later where DNS is silent.")
	line("visible_hostname egress")
	line("pid_filename none")
	line("coredump_dir none")
	line("pinger_enable off")
	line("max_filedescriptors %d", c.fileDescriptors)
	line("shutdown_lifetime 3 seconds")
	line("# Nothing is kept.")
	line("cache deny all")
	line("cache_mem 0 MB")
	line("memory_pools off")
	line("client_db off")
	line("digest_generation off")
	line("cache_log /dev/stderr")
	line("logfile_rotate 0")
	line("access_log stdio:/dev/stdout")
	line("# Targets don't learn of the proxy or of its client.")
	line("via off")
	line("forwarded_for delete")
	line("httpd_suppress_version_string on")
	line("# Who may go where; the first rule that fits decides.")
	networks(line, "clients src", c.allowClients)
	line("http_access deny !clients")
	if c.passwords != "" {
		line("auth_param basic program %s %s", basicHelper, c.passwords)
		line("auth_param basic children 5 startup=1 idle=1")
		line("auth_param basic realm egress")
		line("auth_param basic credentialsttl 1 hour")
		line("auth_param basic casesensitive on")
		line("acl users proxy_auth REQUIRED")
		line("http_access deny !users")
	}
	line("# No squid of another pod asks for its state.")
	line("http_access deny manager")
	if len(c.allowTargets) > 0 {
		networks(line, "targets dst", c.allowTargets)
		line("http_access allow targets")
	}
	networks(line, "inner dst", notPublic())
	line("http_access deny inner")
	line("http_access allow all")
	return b.String()
}

// networks writes an access list. squid takes lines of up to 2048 characters, so
// that each network has its own.
func networks(line func(string, ...any), list string, of []string) {
	for _, network := range of {
		line("acl %s %s", list, network)
	}
}
