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
	auth            bool
	allowClients    []string
	allowTargets    []string // empty: everything but the node's own addresses
	fileDescriptors int
}

// squidConf is a forward proxy that keeps nothing, tells nothing of its clients
// and writes nothing outside its standard output.
func squidConf(c proxyConfig) string {
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	line("# Written by egress. A change is lost with the pod.")
	line("http_port %d", c.port)
	line("visible_hostname egress")
	line("pid_filename none")
	line("coredump_dir none")
	line("max_filedescriptors %d", c.fileDescriptors)
	line("shutdown_lifetime 3 seconds")
	line("# Nothing is kept.")
	line("cache deny all")
	line("cache_mem 0 MB")
	line("memory_pools off")
	line("cache_log /dev/stderr")
	line("logfile_rotate 0")
	line("access_log stdio:/dev/stdout")
	line("# Targets don't learn of the proxy or of its client.")
	line("via off")
	line("forwarded_for delete")
	line("request_header_access X-Forwarded-For deny all")
	line("httpd_suppress_version_string on")
	if c.auth {
		line("# The proxy asks for a password.")
		line("auth_param basic program %s %s/%s", basicHelper, filesDir, passwordFile)
		line("auth_param basic children 5 startup=1 idle=1")
		line("auth_param basic realm egress")
		line("auth_param basic credentialsttl 1 hour")
		line("acl users proxy_auth REQUIRED")
	}
	line("# Who may go where; the first rule that fits decides.")
	line("acl clients src %s", strings.Join(c.allowClients, " "))
	line("http_access deny !clients")
	if len(c.allowTargets) > 0 {
		line("acl targets dst %s", strings.Join(c.allowTargets, " "))
		line("http_access deny !targets")
	} else {
		line("acl node dst 127.0.0.0/8 169.254.0.0/16 ::1 fe80::/10")
		line("http_access deny node")
	}
	if c.auth {
		line("http_access deny !users")
	}
	line("http_access allow all")
	return b.String()
}
