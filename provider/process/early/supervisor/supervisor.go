// Package supervisor makes the binary a supervisor when its arguments say so.
package supervisor

import (
	"os"

	"github.com/egress-proxies/egress/provider/process/supervise"
)

func init() {
	if len(os.Args) == 3 && os.Args[1] == supervise.Verb {
		os.Exit(supervise.Main(os.Args[2]))
	}
}
