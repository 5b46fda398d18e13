// Package early runs the two hidden verbs of the binary, the supervisor of an
// instance and the built-in proxy under it, before the rest of the binary is
// initialised.
//
// The binary holds the libraries of every provider, whose package variables
// alone take tens of megabytes; a node runs two of these processes for each
// instance. Packages are initialised in the order of their import paths as far
// as their imports allow, so a package that imports little comes first. The
// measured effect is in docs/process.md.
package early

import (
	"os"

	"github.com/egress-proxies/egress/provider/process/forward"
	"github.com/egress-proxies/egress/provider/process/supervise"
)

// ProxyFlag is the argument after "proxy" that makes the proxy read its whole
// configuration from standard input, as its supervisor starts it.
const ProxyFlag = "--config-from-stdin"

func init() {
	if len(os.Args) != 3 {
		return
	}
	switch {
	case os.Args[1] == supervise.Verb:
		os.Exit(supervise.Main(os.Args[2]))
	case os.Args[1] == "proxy" && os.Args[2] == ProxyFlag:
		os.Exit(forward.Main(os.Stdin))
	}
}
