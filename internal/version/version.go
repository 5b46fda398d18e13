// Package version knows which build this is.
package version

import (
	"fmt"
	"runtime"
	"runtime/debug"
)

// Version is stamped by the linker (make build); a plain `go build` is "dev".
var Version = "dev"

// Info is a build.
type Info struct {
	// Version is the tag or the commit that was built.
	Version string `json:"version"`
	// Go is the compiler's version.
	Go string `json:"go"`
	// Platform is "linux/amd64".
	Platform string `json:"platform"`
}

// Get describes the running binary.
func Get() Info {
	info := Info{Version: Version, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	if build, ok := debug.ReadBuildInfo(); ok && info.Version == "dev" && build.Main.Version != "" && build.Main.Version != "(devel)" {
		info.Version = build.Main.Version
	}
	return info
}

// String is one line for people.
func (i Info) String() string {
	return fmt.Sprintf("egress %s (%s, %s)", i.Version, i.Go, i.Platform)
}
