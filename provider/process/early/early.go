// Package early makes the binary run its two hidden verbs, the supervisor of an
// instance and the built-in proxy under it, before the rest of the binary is
// initialised.
//
// The binary holds the libraries of every provider, whose package variables
// alone take megabytes and tens of milliseconds; a node runs two of these
// processes for each instance. Go initialises packages in the order of their
// import paths as far as their imports allow (the language specification,
// "Program initialization"), so a package that imports little comes first. The
// two verbs are packages of their own, since each is held up by what it
// imports. The measured effect is in docs/process.md.
package early

import (
	_ "github.com/egress-proxies/egress/provider/process/early/proxy"      // the built-in proxy
	_ "github.com/egress-proxies/egress/provider/process/early/supervisor" // its parent
)
