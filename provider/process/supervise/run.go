package supervise

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/signal"
	"runtime"
	"syscall"
	"time"
)

// StatusFD is the descriptor on which a supervisor tells its starter, in one
// line of JSON, how the start went. Nobody need be listening.
const StatusFD = 3

// Status is the line on StatusFD.
type Status struct {
	// Started is true when the process runs.
	Started bool `json:"started"`
	// Error says why it does not.
	Error string `json:"error,omitempty"`
	// Permanent is true when the same start can't work until a person changes
	// something: the command is not there or not executable.
	Permanent bool `json:"permanent,omitempty"`
	// Taken is true when another supervisor has the instance already.
	Taken bool `json:"taken,omitempty"`
}

// Main is the whole life of a supervisor: it runs the plan in dir and returns
// the exit code of the supervisor itself.
func Main(dir string) int {
	// The kernel sends the parent-death signal when the thread that started the
	// child ends, not the process: the child is started from this thread, and
	// this thread stays.
	runtime.LockOSThread()
	_ = os.WriteFile("/proc/self/comm", []byte("egress-supervis"), 0) // for ps only
	signal.Ignore(syscall.SIGPIPE)

	status := os.NewFile(StatusFD, "status")
	lock, err := hold(dir)
	if err != nil {
		tell(status, Status{Error: err.Error(), Taken: errors.Is(err, ErrLocked)})
		return 1
	}
	// Only the end of the process lets go of the lock: who finds it free may
	// take the supervisor for gone.
	s := &supervisor{dir: dir, status: status, lock: lock}
	defer runtime.KeepAlive(s)
	if err := s.run(); err != nil {
		fmt.Fprintf(os.Stderr, "egress supervise %s: %v\n", dir, err)
		return 1
	}
	return 0
}

// supervisor is the state of one run.
type supervisor struct {
	dir    string
	status *os.File
	lock   *os.File
	plan   Plan
	record Run
	output *output
	stderr *lastLine
}

func (s *supervisor) run() error {
	if found, err := readRecord(s.dir, planFile, &s.plan); err != nil || !found {
		return errors.Join(err, s.refuse("no plan"))
	}
	if ended, err := readRecord(s.dir, exitFile, &Exit{}); err != nil || ended {
		return errors.Join(err, s.refuse("it has ended already"))
	}
	self, err := Identify(os.Getpid())
	if err != nil {
		return errors.Join(err, s.refuse(err.Error()))
	}
	s.record = Run{Supervisor: self, StartedAt: time.Now()}
	if err := writeRecord(s.dir, runFile, s.record); err != nil {
		return errors.Join(err, s.refuse(err.Error()))
	}
	s.output = newOutput(s.dir, s.plan.LogMaxBytes)
	s.stderr = &lastLine{}
	becomeSubreaper()

	signals := make(chan os.Signal, 16)
	signal.Notify(signals, forwarded...)
	pumps, child, err := s.start()
	if err != nil {
		exit := Exit{Code: 127, FailedStart: err.Error(), At: time.Now()}
		recorded := writeRecord(s.dir, exitFile, exit)
		tell(s.status, Status{Error: err.Error(), Permanent: isPermanent(err)})
		return errors.Join(err, recorded)
	}
	s.record.Child, err = Identify(child)
	go forward(signals, s.record.Child) // ends with the supervisor
	if err == nil {
		err = writeRecord(s.dir, runFile, s.record)
	}
	if err != nil {
		// A process that nobody could find again must not run.
		_ = syscall.Kill(child, syscall.SIGKILL)
		tell(s.status, Status{Error: err.Error()})
	} else {
		tell(s.status, Status{Started: true})
	}
	return s.finish(child, pumps)
}

// finish waits for the end and records it.
func (s *supervisor) finish(child int, pumps *pumps) error {
	ended, err := waitFor(child)
	if err != nil {
		return err
	}
	exit := Exit{Code: ended.ExitStatus(), At: time.Now()}
	if ended.Signaled() {
		exit.Code, exit.Signal = 128+int(ended.Signal()), int(ended.Signal())
		exit.OOMKilled = ended.Signal() == syscall.SIGKILL && oomKilled(child)
	}
	killRest(child)
	pumps.drain()
	exit.LastError = s.stderr.String()
	return errors.Join(s.output.Close(), writeRecord(s.dir, exitFile, exit))
}

// isPermanent tells a command that can't be run from a node that has no room.
func isPermanent(err error) bool {
	for _, permanent := range []error{
		fs.ErrNotExist, fs.ErrPermission, errNotFound, errNotExecutable,
		syscall.ENOEXEC, syscall.ENOTDIR, syscall.E2BIG, syscall.ELOOP,
	} {
		if errors.Is(err, permanent) {
			return true
		}
	}
	return false
}

var errNotFound = errors.New("executable file not found")

var errNotExecutable = errors.New("not an executable file")

// refuse tells the starter and gives the same as an error.
func (s *supervisor) refuse(reason string) error {
	tell(s.status, Status{Error: reason})
	return errors.New(reason)
}

// tell writes the status line. A starter that is gone doesn't matter.
func tell(status *os.File, line Status) {
	content, err := json.Marshal(line)
	if err != nil {
		return
	}
	_, _ = status.Write(append(content, '\n'))
	_ = status.Close()
}

// forwarded are the signals that reach the process through its supervisor.
var forwarded = []os.Signal{
	syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2,
}

func forward(signals <-chan os.Signal, child Process) {
	for received := range signals {
		if number, ok := received.(syscall.Signal); ok {
			_ = child.Signal(number) // gone is fine: its end is being recorded
		}
	}
}

const (
	prSetChildSubreaper = 36 // prctl(2)
	capNetBindService   = 10 // capabilities(7)
)

// becomeSubreaper makes orphans of the process children of the supervisor, so
// that none escapes by losing its parent.
func becomeSubreaper() {
	_, _, _ = syscall.RawSyscall(syscall.SYS_PRCTL, prSetChildSubreaper, 1, 0)
}
