// Package supervisor makes the binary a supervisor when its arguments say so.
package supervisor

import (
	"os"
	"syscall"

	"github.com/egress-proxies/egress/provider/process/supervise"
)

func init() {
	if len(os.Args) == 3 && os.Args[1] == supervise.Verb {
		// Not os.Exit: the race detector's runtime would linger for a second,
		// and with it the instance.
		syscall.Exit(supervise.Main(os.Args[2]))
	}
}
