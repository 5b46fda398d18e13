package cluster

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
)

// Where blocks of ports are taken from: below the kernel's ephemeral ports
// (32768 on Linux), so that no outgoing connection can sit on one, and where
// Nomad's own dynamic ports are.
const (
	firstPort = 20000
	lastPort  = 31999
	blockSize = 200
	// agentPorts of each block are for the agents, the others are what Nomad
	// gives to tasks.
	agentPorts = 10
)

// ports is a block of consecutive free ports. Nomad doesn't look whether a
// dynamic port is free, so two clusters must not share any: the block belongs
// to whoever listens on its first port.
type ports struct {
	first int
	guard net.Listener
	given int
}

// reservePorts finds a block in which nothing listens.
func reservePorts() (*ports, error) {
	blocks := (lastPort + 1 - firstPort) / blockSize
	for _, block := range rand.Perm(blocks) {
		first := firstPort + block*blockSize
		guard, err := listen(first)
		if err != nil {
			continue
		}
		if allFree(first+1, first+blockSize) {
			return &ports{first: first, guard: guard, given: 1}, nil
		}
		_ = guard.Close()
	}
	return nil, errors.New("reserve ports: no free block between " +
		strconv.Itoa(firstPort) + " and " + strconv.Itoa(lastPort))
}

func listen(port int) (net.Listener, error) {
	return net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
}

func allFree(from, to int) bool {
	for port := from; port < to; port++ {
		l, err := listen(port)
		if err != nil {
			return false
		}
		_ = l.Close()
	}
	return true
}

// next is a port for an agent.
func (p *ports) next() int {
	if p.given == agentPorts {
		panic(fmt.Sprintf("more than %d ports for agents", agentPorts))
	}
	port := p.first + p.given
	p.given++
	return port
}

// dynamic is the range for tasks.
func (p *ports) dynamic() (first, last int) {
	return p.first + agentPorts, p.first + blockSize - 1
}

// Close gives the block back.
func (p *ports) Close() error { return p.guard.Close() }
