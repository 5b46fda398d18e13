// Package guest gives the machines of the stand-in of Compute Engine a life: a
// machine is a process of the built-in proxy on a loopback address of its own.
package guest

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"net"
	"os/exec"
	"sync"

	"github.com/egress-proxies/egress/provider/gcp/computetest"
)

// Proxies runs them. It is a computetest.Backend.
type Proxies struct {
	// Binary is the egress binary.
	Binary string
	// Dir is the working directory of the processes.
	Dir string

	mu      sync.Mutex // guards running
	running map[string]*proxy
}

type proxy struct {
	cmd    *exec.Cmd
	output lockedBuffer
}

// lockedBuffer is what a proxy has printed.
type lockedBuffer struct {
	mu sync.Mutex // guards b
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) bytes() []byte {
	l.mu.Lock()
	defer l.mu.Unlock()
	return bytes.Clone(l.b.Bytes())
}

// Start starts a proxy on the port that the machine's metadata names.
func (p *Proxies) Start(m computetest.Machine) (address string, err error) {
	port := m.Metadata["egress-port"]
	if address, err = freeAddress(port); err != nil {
		return "", err
	}
	started := &proxy{cmd: exec.Command(p.Binary, "proxy", "--listen", net.JoinHostPort(address, port), "--bind", address,
		"--allow-client", "127.0.0.0/8", "--allow-target", "127.0.0.0/8")}
	started.cmd.Dir = p.Dir
	started.cmd.Stdout, started.cmd.Stderr = &started.output, &started.output
	if err := started.cmd.Start(); err != nil {
		return "", err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.running == nil {
		p.running = make(map[string]*proxy)
	}
	p.running[m.Name] = started
	return address, nil
}

// freeAddress is a loopback address on which nobody uses the port.
func freeAddress(port string) (string, error) {
	for range 20 {
		address := fmt.Sprintf("127.%d.%d.%d", 100+rand.IntN(100), rand.IntN(256), 1+rand.IntN(254))
		listener, err := net.Listen("tcp", net.JoinHostPort(address, port))
		if err == nil {
			return address, listener.Close()
		}
	}
	return "", fmt.Errorf("port %s: no loopback address has it free", port)
}

// Stop kills the proxy and waits for its end.
func (p *Proxies) Stop(name string) {
	p.mu.Lock()
	stopped, ok := p.running[name]
	delete(p.running, name)
	p.mu.Unlock()
	if ok {
		_ = stopped.cmd.Process.Kill()
		_ = stopped.cmd.Wait()
	}
}

// Output is what the proxy printed: the machine's serial port.
func (p *Proxies) Output(name string) []byte {
	p.mu.Lock()
	running, ok := p.running[name]
	p.mu.Unlock()
	if !ok {
		return nil
	}
	return running.output.bytes()
}
