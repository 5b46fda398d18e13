package forward

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
)

// StdinFlag is the argument after "proxy" that makes the binary a proxy under a
// supervisor, with its whole configuration on standard input.
const StdinFlag = "--config-from-stdin"

// Main is the whole life of a proxy under a supervisor: it reads a Config as
// JSON and returns the exit code.
func Main(input io.Reader) int {
	_ = os.WriteFile("/proc/self/comm", []byte("egress-proxy"), 0) // for ps only
	var config Config
	err := json.NewDecoder(input).Decode(&config)
	if err == nil {
		err = Run(config, os.Stdout, os.Stderr)
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "egress proxy: %v\n", err)
		return 1
	}
	return 0
}

// Run serves until SIGTERM or SIGINT and lets tunnels finish within the drain
// timeout; a second one ends them at once. SIGHUP reads the credentials again.
func Run(config Config, access, messages io.Writer) error {
	server, err := New(config, access)
	if err != nil {
		return err
	}
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	defer signal.Stop(signals)
	listener, err := server.Listen()
	if err != nil {
		return err
	}
	if config.ControlFD != 0 {
		control, err := controlListener(config.ControlFD)
		if err != nil {
			return errors.Join(err, listener.Close())
		}
		controlled := make(chan struct{})
		go func() {
			defer close(controlled)
			server.control(control)
		}()
		defer func() {
			_ = control.Close()
			<-controlled
		}()
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	for {
		select {
		case err := <-served:
			return err
		case received := <-signals:
			if received != syscall.SIGHUP {
				server.drain(signals)
				return <-served
			}
			if err := server.Reload(); err != nil {
				fmt.Fprintf(messages, "egress proxy: the old credentials stay: %v\n", err)
			}
		}
	}
}

// drain shuts down within the drain timeout, or at the next signal.
func (s *Server) drain(signals <-chan os.Signal) {
	ctx, cancel := context.WithTimeout(context.Background(), s.config.DrainTimeout)
	defer cancel()
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.Shutdown(ctx)
	}()
	for {
		select {
		case <-done:
			return
		case received := <-signals:
			if received != syscall.SIGHUP {
				cancel()
			}
		}
	}
}
