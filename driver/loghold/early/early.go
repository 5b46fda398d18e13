// Package early makes the binary a holder of log pipes when its arguments say so.
package early

import (
	"os"
	"syscall"

	"github.com/egress-proxies/egress/driver/loghold"
)

func init() {
	if len(os.Args) == 3 && (os.Args[1] == loghold.StartVerb || os.Args[1] == loghold.Verb) {
		syscall.Exit(loghold.Main(os.Args[1], os.Args[2]))
	}
}
