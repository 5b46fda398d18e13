package supervise

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
)

// Phase is how far an instance has come.
type Phase int

// The phases, in the order in which an instance goes through them.
const (
	// Absent: there is no directory.
	Absent Phase = iota
	// Partial: a Prepare or a Start was cut off; nothing runs.
	Partial
	// Starting: the supervisor runs, the process does not yet.
	Starting
	// Running: the process runs.
	Running
	// Ended: the process has ended and Exit says how.
	Ended
	// Lost: the supervisor is gone without having told how the process ended.
	Lost
)

// Snapshot is an instance at one moment.
type Snapshot struct {
	// Phase says which of the other fields are set.
	Phase Phase
	// Plan is set unless Phase is Absent or Partial.
	Plan Plan
	// Planned is true when Plan was read; it may be when Phase is Partial.
	Planned bool
	// Run is set from Running on, and in Starting as soon as it is known.
	Run Run
	// Exit is set when Phase is Ended.
	Exit Exit
	// Stopping is true after MarkStopping.
	Stopping bool
}

// LostReason explains the phase Lost.
func (s Snapshot) LostReason() string {
	if s.Run.Supervisor.Boot != bootID() {
		return "ended by a restart of the node"
	}
	return fmt.Sprintf("its supervisor (pid %d) was killed, and the process with it", s.Run.Supervisor.PID)
}

// Inspect reads the state of the instance in dir.
func Inspect(dir string) (Snapshot, error) {
	var s Snapshot
	// The lock is looked at first: a supervisor writes its last record before
	// it lets go.
	held, err := isHeld(dir)
	if errors.Is(err, fs.ErrNotExist) {
		if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
			return Snapshot{}, nil
		}
		held, err = false, nil
	}
	if err != nil {
		return Snapshot{}, err
	}
	s.Planned, err = readRecord(dir, planFile, &s.Plan)
	if err != nil {
		return Snapshot{}, err
	}
	started, err := readRecord(dir, runFile, &s.Run)
	if err != nil {
		return Snapshot{}, err
	}
	ended, err := readRecord(dir, exitFile, &s.Exit)
	if err != nil {
		return Snapshot{}, err
	}
	if _, err := os.Stat(within(dir, stopFile)); err == nil {
		s.Stopping = true
	}
	switch {
	case ended && s.Planned:
		s.Phase = Ended
	case held && s.Run.Child.PID != 0:
		s.Phase = Running
	case held:
		s.Phase = Starting
	case started && s.Planned:
		s.Phase = Lost
	default:
		s.Phase = Partial
	}
	return s, nil
}

func isHeld(dir string) (bool, error) {
	file, err := os.OpenFile(within(dir, lockFile), os.O_RDWR, 0)
	if err != nil {
		return false, err
	}
	held, err := locked(file)
	return held, errors.Join(err, file.Close())
}
