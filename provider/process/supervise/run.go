package supervise

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"runtime"
	"strconv"
	"strings"
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

// start runs the plan's process with its output captured.
func (s *supervisor) start() (*pumps, int, error) {
	path := "/proc/self/exe" // the same binary, also after an upgrade replaced the file
	if !s.plan.Self {
		found, err := lookPath(s.plan)
		if err != nil {
			return nil, 0, err
		}
		path = found
	}
	stdin, err := inputFile(s.plan.Input)
	if err != nil {
		return nil, 0, err
	}
	defer func() { _ = stdin.Close() }()
	pumps, err := newPumps(s.output, io.MultiWriter(s.output, s.stderr))
	if err != nil {
		return nil, 0, err
	}
	attr := &os.ProcAttr{
		Dir:   s.plan.Dir,
		Env:   append(s.plan.Env, Marker+"="+s.dir),
		Files: []*os.File{stdin, pumps.writers[0], pumps.writers[1]},
		Sys:   &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL},
	}
	if attr.Dir == "" {
		attr.Dir = "/"
	}
	if account := s.plan.Account; account != nil {
		attr.Sys.Credential = &syscall.Credential{Uid: account.UID, Gid: account.GID, Groups: account.Groups}
		// Ports below 1024 work without the rest of root's powers.
		attr.Sys.AmbientCaps = []uintptr{capNetBindService}
	}
	process, err := os.StartProcess(path, s.plan.Args, attr)
	if err != nil {
		if s.plan.Self && s.plan.Account != nil && errors.Is(err, fs.ErrPermission) {
			err = fmt.Errorf("the egress binary is not executable for uid %d: make it so (chmod 755): %w", s.plan.Account.UID, err)
		}
		return nil, 0, errors.Join(err, pumps.abandon())
	}
	pid := process.Pid
	_ = process.Release() // waited for by pid, together with its orphans
	pumps.start()
	return pumps, pid, nil
}

// inputFile holds the input of a process where only it can read it: a pipe that
// was filled and closed.
func inputFile(input []byte) (*os.File, error) {
	if len(input) == 0 {
		return os.Open(os.DevNull)
	}
	reader, writer, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	if len(input) > maxInput {
		return nil, errors.Join(fmt.Errorf("input of %d bytes: want at most %d", len(input), maxInput), reader.Close(), writer.Close())
	}
	_, err = writer.Write(input)
	if err := errors.Join(err, writer.Close()); err != nil {
		return nil, errors.Join(err, reader.Close())
	}
	return reader, nil
}

// maxInput is what a pipe holds without a reader (pipe(7)).
const maxInput = 64 << 10

// defaultPath is searched when the plan's environment has no PATH.
const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// lookPath finds the program of a plan as a shell in its directory would.
func lookPath(plan Plan) (string, error) {
	if strings.Contains(plan.Path, "/") {
		path := plan.Path
		if !strings.HasPrefix(path, "/") {
			path = within(plan.Dir, path)
		}
		return path, executable(path)
	}
	search := defaultPath
	for _, variable := range plan.Env {
		if value, ok := strings.CutPrefix(variable, "PATH="); ok {
			search = value
		}
	}
	for _, dir := range strings.Split(search, ":") {
		if path := within(dir, plan.Path); strings.HasPrefix(path, "/") && executable(path) == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("command %q: %w in %s", plan.Path, errNotFound, search)
}

func executable(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return fmt.Errorf("command: %w", err)
	}
	if info.IsDir() || info.Mode()&0o111 == 0 {
		return fmt.Errorf("command %s: %w", path, errNotExecutable)
	}
	return nil
}

// waitFor reaps children until pid has ended: orphans of the process become
// children of the supervisor.
func waitFor(pid int) (syscall.WaitStatus, error) {
	for {
		var status syscall.WaitStatus
		ended, err := syscall.Wait4(-1, &status, 0, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
		case err != nil:
			return 0, os.NewSyscallError("wait4", err)
		case ended == pid:
			return status, nil
		}
	}
}

// killRest ends what the process left behind.
func killRest(pid int) {
	_ = syscall.Kill(-pid, syscall.SIGKILL) // its session's first group
	self := os.Getpid()
	deadline := time.Now().Add(2 * time.Second)
	for time.Now().Before(deadline) {
		ended, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil)
		if errors.Is(err, syscall.ECHILD) {
			return
		}
		if ended > 0 {
			continue
		}
		pids, _ := Processes()
		for _, pid := range pids {
			if stat, err := ReadStat(pid); err == nil && stat.Parent == self {
				_ = syscall.Kill(pid, syscall.SIGKILL) // a child of ours: the pid can't be reused
			}
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// oomKilled looks for the process in the kernel's log, where it may be read.
func oomKilled(pid int) bool {
	log, err := os.OpenFile("/dev/kmsg", os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return false
	}
	defer func() { _ = log.Close() }()
	raw, err := log.SyscallConn()
	if err != nil {
		return false
	}
	found := false
	want := []byte("Killed process " + strconv.Itoa(pid) + " (")
	_ = raw.Control(func(fd uintptr) {
		record := make([]byte, 8192) // one read is one record
		for {
			n, err := syscall.Read(int(fd), record)
			if errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.EINTR) {
				continue // records were overwritten meanwhile
			}
			if err != nil || n <= 0 {
				return
			}
			found = found || bytes.Contains(record[:n], want)
		}
	})
	return found
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
