package driver

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/hashicorp/nomad/nomad/structs"
	"github.com/hashicorp/nomad/plugins/drivers"

	"github.com/egress-proxies/egress/provider"
)

// defaultPort of proxies that have an address of their own: squid's.
const defaultPort = 3128

// listener is where a proxy listens.
type listener struct {
	// label of the Nomad port; empty when the task gives a bare number.
	label string
	// port in the instance.
	port int
	// host is the address on the node that Nomad chose for the port.
	host string
}

// resolvePort finds where the proxy listens. A label takes the number that
// Nomad reserved on the node or, for an instance with an address of its own,
// the port's `to`; a number is itself, and belongs to the label that has it.
func resolvePort(port string, place *place, resources *drivers.Resources) (listener, error) {
	mappings := portMappings(resources)
	if port == "" {
		return unsetPort(place, mappings)
	}
	if number, err := strconv.Atoi(port); err == nil {
		if number < 1 || number > maxPort {
			return listener{}, provider.Permanentf("port %q: want a port label, or a number from 1 to %d", port, maxPort)
		}
		for _, mapping := range mappings {
			if mapping.Value == number || mapping.To == number {
				return listener{label: mapping.Label, port: number, host: mapping.HostIP}, nil
			}
		}
		return listener{port: number}, nil
	}
	for _, mapping := range mappings {
		if mapping.Label == port {
			return fromMapping(mapping, place), nil
		}
	}
	return listener{}, provider.Permanentf("port %q: the group's network has no port of that label: want %s", port,
		wantedPorts(mappings))
}

func unsetPort(place *place, mappings structs.AllocatedPorts) (listener, error) {
	switch {
	case len(mappings) == 1:
		return fromMapping(mappings[0], place), nil
	case place.onNode():
		return listener{}, provider.Permanentf("port is missing: want %s", wantedPorts(mappings))
	default:
		return listener{port: defaultPort}, nil
	}
}

func fromMapping(mapping structs.AllocatedPortMapping, place *place) listener {
	found := listener{label: mapping.Label, port: mapping.Value, host: mapping.HostIP}
	if mapping.To > 0 && !place.onNode() {
		found.port = mapping.To
	}
	return found
}

// wantedPorts says what could stand in `port`.
func wantedPorts(mappings structs.AllocatedPorts) string {
	if len(mappings) == 0 {
		return `the label of a port of the group's network block (it has none: network { port "proxy" {} })`
	}
	labels := make([]string, 0, len(mappings))
	for _, mapping := range mappings {
		labels = append(labels, strconv.Quote(mapping.Label))
	}
	return fmt.Sprintf("one of the labels %s, or a number", strings.Join(labels, ", "))
}

// portMappings are the ports of the group's network, or those of the task's own
// (as jobs written before Nomad 0.12 have them).
func portMappings(resources *drivers.Resources) structs.AllocatedPorts {
	if resources == nil {
		return nil
	}
	if resources.Ports != nil && len(*resources.Ports) > 0 {
		return *resources.Ports
	}
	if resources.NomadResources == nil {
		return nil
	}
	var mappings structs.AllocatedPorts
	for _, network := range resources.NomadResources.Networks {
		for _, port := range append(network.ReservedPorts, network.DynamicPorts...) {
			mappings = append(mappings, structs.AllocatedPortMapping{Label: port.Label, Value: port.Value, To: port.To, HostIP: network.IP})
		}
	}
	return mappings
}

// network is what Nomad puts into the task's services. A proxy on the node
// itself isn't advertised by the driver: Nomad's own choice, the node's address
// and the port that it reserved, is right, and the driver's would be `to`, 0
// when there is none (nomad issue 3599).
func (l listener) network(place *place, address string, port int) *drivers.DriverNetwork {
	network := &drivers.DriverNetwork{IP: address, AutoAdvertise: !place.onNode()}
	if l.label != "" {
		network.PortMap = map[string]int{l.label: port}
	}
	return network
}
