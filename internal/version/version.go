// Package version knows which build this is.
package version

import (
	"fmt"
	"runtime"
)

// Version is the release, as semantic versioning has it: Nomad refuses a plugin
// whose version it can't parse.
const Version = "0.1.0-dev"

// Commit is what was built; the linker stamps it (make build).
var Commit = ""

// Info is a build.
type Info struct {
	// Version is the release.
	Version string `json:"version"`
	// Commit is what was built; empty in a build without make.
	Commit string `json:"commit,omitempty"`
	// Go is the compiler's version.
	Go string `json:"go"`
	// Platform is "linux/amd64".
	Platform string `json:"platform"`
}

// Get describes the running binary.
func Get() Info {
	return Info{Version: Version, Commit: Commit, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
}

// String is one line for people.
func (i Info) String() string {
	commit := ""
	if i.Commit != "" {
		commit = i.Commit + ", "
	}
	return fmt.Sprintf("egress %s (%s%s, %s)", i.Version, commit, i.Go, i.Platform)
}
