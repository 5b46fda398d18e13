package guard

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Listeners are the processes of dir that listen on a TCP port: a proxy by what
// it does, whatever its provider calls it.
func Listeners(dir string, port int) ([]Process, error) {
	inodes := listening(port)
	processes, err := Processes(dir)
	return slices.DeleteFunc(processes, func(p Process) bool {
		fds, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", p.PID))
		return !slices.ContainsFunc(fds, func(fd string) bool {
			target, _ := os.Readlink(fd)
			return inodes[target]
		})
	}), err
}

// listening are the sockets that listen on a port, as /proc/<pid>/fd shows
// them.
func listening(port int) map[string]bool {
	inodes := map[string]bool{}
	for _, table := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		text, _ := os.ReadFile(table)
		for line := range strings.Lines(string(text)) {
			// sl local_address rem_address st … inode, numbers in hex; state 0A
			// is LISTEN (proc(5)).
			fields := strings.Fields(line)
			if len(fields) > 9 && fields[3] == "0A" && strings.HasSuffix(fields[1], fmt.Sprintf(":%04X", port)) {
				inodes["socket:["+fields[9]+"]"] = true
			}
		}
	}
	return inodes
}
