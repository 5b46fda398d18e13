// Package supervise keeps one process running apart from whoever asked for it,
// and leaves on disk what became of it. One supervisor is the parent of one
// process: it captures the output, forwards signals, and records how the end
// came about, so that a plugin which was restarted in between can still tell.
//
// Everything about one process is in one directory, the files below. The
// package uses the standard library only, and of that not os/exec, path/filepath
// and runtime/debug, since it runs before the rest of the binary is initialised
// (see provider/process/early).
package supervise

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"time"
)

// The files of one instance.
const (
	planFile = "plan.json"
	runFile  = "run.json"
	exitFile = "exit.json"
	stopFile = "stopping"
	lockFile = "lock"
	logFile  = "supervisor.log"
	ctrlFile = "control"
)

// Marker is the environment variable that every process of an instance has,
// with the instance's directory as its value. It finds the processes that
// outlived a supervisor which was killed.
const Marker = "EGRESS_INSTANCE_DIR"

// Verb is the first argument of the binary that makes it a supervisor; the
// second is the directory.
const Verb = "supervise"

// Plan is what to run. It is written once, before the supervisor starts.
type Plan struct {
	// Self runs the supervisor's own binary instead of Path.
	Self bool `json:"self,omitempty"`
	// Path is the program: absolute, relative to Dir, or a name that is looked
	// up in the PATH of Env.
	Path string `json:"path,omitempty"`
	// Args are the arguments, with the name of the program first.
	Args []string `json:"args"`
	// Env is the whole environment, as KEY=VALUE.
	Env []string `json:"env,omitempty"`
	// Dir is the working directory; empty is the root directory.
	Dir string `json:"dir,omitempty"`
	// Input is what the process reads from its standard input. Secrets go here:
	// an argument or a variable would show in ps.
	Input []byte `json:"input,omitempty"`
	// Control gives the process a listening socket as its descriptor ControlFD,
	// which DialControl connects to.
	Control bool `json:"control,omitempty"`
	// Account is who the process runs as; nil is the supervisor's own.
	Account *Account `json:"account,omitempty"`
	// LogMaxBytes bounds the captured output that is kept.
	LogMaxBytes int64 `json:"log_max_bytes"`
	// Meta is the caller's own, returned as it was given.
	Meta json.RawMessage `json:"meta,omitempty"`
}

// Account is a user with the groups it belongs to.
type Account struct {
	UID    uint32   `json:"uid"`
	GID    uint32   `json:"gid"`
	Groups []uint32 `json:"groups,omitempty"`
}

// Run is what the supervisor knows while the process runs.
type Run struct {
	// Supervisor is the supervisor itself.
	Supervisor Process `json:"supervisor"`
	// Child is the process; zero until it was started.
	Child Process `json:"child"`
	// StartedAt is when the supervisor started.
	StartedAt time.Time `json:"started_at"`
}

// Exit is how the process ended, as its supervisor saw it.
type Exit struct {
	// Code is the exit code; 0 with no signal is a clean end.
	Code int `json:"code"`
	// Signal is the number of the signal that ended it; 0 is none.
	Signal int `json:"signal,omitempty"`
	// OOMKilled is true when the kernel's log says so.
	OOMKilled bool `json:"oom_killed,omitempty"`
	// LastError is the last line of the standard error stream, cut to a size
	// that fits a message.
	LastError string `json:"last_error,omitempty"`
	// FailedStart says why the process could not be started at all.
	FailedStart string `json:"failed_start,omitempty"`
	// At is when it ended.
	At time.Time `json:"at"`
}

// Reason explains the end to a person.
func (e Exit) Reason() string {
	var reason string
	switch {
	case e.FailedStart != "":
		return e.FailedStart
	case e.OOMKilled:
		reason = "killed because memory ran out"
	case e.Signal != 0:
		reason = fmt.Sprintf("ended by signal %d", e.Signal)
	case e.Code != 0:
		reason = fmt.Sprintf("exit code %d", e.Code)
	default:
		return "ended by itself"
	}
	if e.LastError != "" {
		reason += ": " + e.LastError
	}
	return reason
}

// writeRecord replaces a file so that a reader, also one after a power cut,
// sees the old content or the new one and never a part.
func writeRecord(dir, name string, record any) error {
	content, err := json.Marshal(record)
	if err != nil {
		return err
	}
	temp, err := os.CreateTemp(dir, "."+name+"-")
	if err != nil {
		return err
	}
	_, err = temp.Write(content)
	if err == nil {
		err = temp.Sync()
	}
	err = errors.Join(err, temp.Close())
	if err == nil {
		err = os.Rename(temp.Name(), within(dir, name))
	}
	if err != nil {
		return errors.Join(err, os.Remove(temp.Name()))
	}
	return syncDir(dir)
}

// within is the path of a file in an absolute directory.
func within(dir, name string) string { return dir + "/" + name }

// parent is the directory that an absolute one is in.
func parent(dir string) string { return dir[:max(strings.LastIndexByte(dir, '/'), 1)] }

// syncDir makes the names in a directory durable.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// readRecord fills record from a file; found is false when there is none.
func readRecord(dir, name string, record any) (found bool, err error) {
	content, err := os.ReadFile(within(dir, name))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if err := json.Unmarshal(content, record); err != nil {
		return false, fmt.Errorf("%s: %w", within(dir, name), err)
	}
	return true, nil
}
