package registry

import "time"

// Endpoint is one proxy as it is published. The names of the fields are the
// keys of its Consul meta, in lower case with underscores; docs/probe.md lists
// them.
type Endpoint struct {
	// Name is the instance name: a DNS label. The service id and the check id
	// are "egress-" and the name.
	Name string
	// Service is the Consul service name. Empty is Config.Service.
	Service string
	// Address is an IP address or a DNS name.
	Address string
	// Port is between 1 and 65535.
	Port int
	// Tags of the task; "egress" comes first always, and "ipv6" is added while
	// the exit address is an IPv6 one.
	Tags []string

	// Provider is the name of the provider block.
	Provider string
	// Zone is where the provider placed it.
	Zone string
	// Namespace of the Nomad job.
	Namespace string
	// Job is the Nomad job id.
	Job string
	// Group is the task group.
	Group string
	// Alloc is the allocation id.
	Alloc string
	// Task is the task's name.
	Task string
	// MaxLeases is how many clients may share it; 0 is unlimited.
	MaxLeases int
	// Auth is the name under which both sides find the credentials. Empty is
	// none. Never a password.
	Auth string
	// Attributes are the task's own meta keys; see CheckAttributes.
	Attributes map[string]string

	// TTL after which Consul calls the check critical when nothing is heard:
	// a small multiple of the probe interval. 0 is DefaultTTL; less than
	// MinTTL is MinTTL. A heartbeat is sent every third of it.
	TTL time.Duration
}

// CheckAttributes says whether attributes can be published: at most
// MaxAttributes, keys of letters, digits, - and _ up to 128 characters that are
// not reserved, values of up to 512 bytes. All problems are told at once; each
// names the key, the value and what is expected.
func CheckAttributes(attributes map[string]string) error {
	return nil
}

// CheckService says whether name can be a Consul service name that DNS finds
// too: letters, digits and dashes, at most 63.
func CheckService(name string) error {
	return nil
}
