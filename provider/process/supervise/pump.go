package supervise

import (
	"errors"
	"io"
	"os"
	"sync"
	"time"
)

// pumps copy the two output streams of a process.
type pumps struct {
	readers [2]*os.File
	writers [2]*os.File // the process's ends
	sinks   [2]io.Writer
	done    sync.WaitGroup
}

func newPumps(stdout, stderr io.Writer) (*pumps, error) {
	p := &pumps{sinks: [2]io.Writer{stdout, stderr}}
	for i := range p.readers {
		reader, writer, err := os.Pipe()
		if err != nil {
			return nil, errors.Join(err, p.abandon())
		}
		p.readers[i], p.writers[i] = reader, writer
	}
	return p, nil
}

// start begins to copy; the process has its own copy of the writers by now.
func (p *pumps) start() {
	for i := range p.readers {
		_ = p.writers[i].Close()
		p.done.Go(func() { _, _ = io.Copy(sinkOnly{p.sinks[i]}, p.readers[i]) }) // sinks never fail
	}
}

// sinkOnly hides the sink's other methods, and so keeps the buffer small.
type sinkOnly struct{ io.Writer }

// drainTime bounds how long a process that left the supervisor's reach may hold
// the streams open.
const drainTime = time.Second

// drain waits for the rest of the output.
func (p *pumps) drain() {
	for _, reader := range p.readers {
		_ = reader.SetReadDeadline(time.Now().Add(drainTime))
	}
	p.done.Wait()
	for _, reader := range p.readers {
		_ = reader.Close()
	}
}

// abandon closes everything before start.
func (p *pumps) abandon() error {
	var problems []error
	for _, file := range append(p.readers[:], p.writers[:]...) {
		if file != nil {
			problems = append(problems, file.Close())
		}
	}
	return errors.Join(problems...)
}
