package supervise

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
)

// Process identifies a process beyond the reuse of its pid: a pid comes back,
// but not with the same start time in the same boot.
type Process struct {
	// PID is the process id; 0 is no process.
	PID int `json:"pid"`
	// Start is the start time in clock ticks since boot (proc(5), field 22).
	Start uint64 `json:"start"`
	// Boot is the kernel's boot id.
	Boot string `json:"boot"`
}

// Identify describes the process that has pid now.
func Identify(pid int) (Process, error) {
	stat, err := ReadStat(pid)
	if err != nil {
		return Process{}, err
	}
	return Process{PID: pid, Start: stat.Start, Boot: bootID()}, nil
}

// Alive is true while the process runs; a zombie does not.
func (p Process) Alive() bool {
	if p.PID <= 0 || p.Boot != bootID() {
		return false
	}
	stat, err := ReadStat(p.PID)
	return err == nil && stat.Start == p.Start && stat.State != 'Z' && stat.State != 'X'
}

// Signal sends a signal to this very process and never to another one that got
// its pid. os.ErrProcessDone says that it is gone.
func (p Process) Signal(signal syscall.Signal) error {
	if p.PID <= 0 {
		return os.ErrProcessDone
	}
	// The handle is opened before the identity is compared: with a pidfd, what
	// was compared is what gets the signal.
	handle, err := os.FindProcess(p.PID)
	if err != nil {
		return err
	}
	defer func() { _ = handle.Release() }()
	if !p.Alive() {
		return os.ErrProcessDone
	}
	return handle.Signal(signal)
}

// bootID is read once: it can't change while we run.
var bootID = sync.OnceValue(func() string {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(id))
})

// Stat is the part of /proc/<pid>/stat that is of use here.
type Stat struct {
	// State is the state letter: R, S, D, Z, …
	State byte
	// Parent is the parent's pid.
	Parent int
	// Session is the session's id, the pid of its first process.
	Session int
	// Start is in clock ticks since boot.
	Start uint64
	// Ticks are the clock ticks of CPU time used, by itself and by the
	// children that it waited for.
	Ticks uint64
}

// TicksPerSecond is USER_HZ, which Linux fixes at 100 for its interfaces.
const TicksPerSecond = 100

// ReadStat reads /proc/<pid>/stat; fs.ErrNotExist says that there is no such
// process.
func ReadStat(pid int) (Stat, error) {
	content, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if errors.Is(err, syscall.ESRCH) {
		return Stat{}, fs.ErrNotExist
	}
	if err != nil {
		return Stat{}, err
	}
	return parseStat(content)
}

// parseStat skips the name, which is in parentheses and may hold any byte.
func parseStat(content []byte) (Stat, error) {
	end := bytes.LastIndexByte(content, ')')
	fields := strings.Fields(string(content[end+1:]))
	if end < 0 || len(fields) < 20 || len(fields[0]) != 1 {
		return Stat{}, fmt.Errorf("process stat %q: unknown format", content)
	}
	stat := Stat{State: fields[0][0]}
	var problems []error
	number := func(field int) uint64 {
		// Fields are numbered as in proc(5), where the state is the third.
		n, err := strconv.ParseInt(fields[field-3], 10, 64)
		problems = append(problems, err)
		return uint64(max(n, 0))
	}
	stat.Parent = int(number(4))
	stat.Session = int(number(6))
	stat.Ticks = number(14) + number(15) + number(16) + number(17)
	stat.Start = number(22)
	return stat, errors.Join(problems...)
}

// Processes lists the pids of the node.
func Processes() ([]int, error) {
	proc, err := os.Open("/proc")
	if err != nil {
		return nil, err
	}
	names, err := proc.Readdirnames(-1)
	if err := errors.Join(err, proc.Close()); err != nil {
		return nil, err
	}
	pids := make([]int, 0, len(names))
	for _, name := range names {
		if pid, err := strconv.Atoi(name); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

// Marked lists the processes that carry dir in their Marker variable.
func Marked(dir string) ([]Process, error) {
	pids, err := Processes()
	if err != nil {
		return nil, err
	}
	want := []byte(Marker + "=" + dir)
	var marked []Process
	for _, pid := range pids {
		process, err := Identify(pid)
		if err != nil {
			continue // ended since the listing
		}
		environ, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/environ")
		if err != nil {
			continue // ended, or another user's and so not ours
		}
		for _, variable := range bytes.Split(environ, []byte{0}) {
			if bytes.Equal(variable, want) {
				marked = append(marked, process)
			}
		}
	}
	return marked, nil
}
