package supervise

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"syscall"
)

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
	files := []*os.File{stdin, nil, nil}
	if s.plan.Control {
		control, err := listenControl(s.dir)
		if err != nil {
			return nil, 0, err
		}
		defer func() { _ = control.Close() }()
		files = append(files, control) // is ControlFD
	}
	pumps, err := newPumps(s.output, io.MultiWriter(s.output, s.stderr))
	if err != nil {
		return nil, 0, err
	}
	files[1], files[2] = pumps.writers[0], pumps.writers[1]
	attr := &os.ProcAttr{
		Dir:   s.plan.Dir,
		Env:   append(s.plan.Env, Marker+"="+s.dir),
		Files: files,
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
