package registry

import (
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"time"

	"github.com/egress-proxies/egress/driver/probe"
	"github.com/hashicorp/consul/api"
)

// idPrefix starts the id of every service and check of ours.
const idPrefix = "egress-"

func serviceID(name string) string { return idPrefix + name }

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

// status is what a check says.
type status struct {
	passing bool
	output  string
	exitIP  netip.Addr
}

// unproven is the status of an endpoint of which nothing is known.
var unproven = status{output: "not probed yet"}

func statusOf(verdict probe.Verdict) status {
	return status{passing: verdict.OK, output: verdict.Message, exitIP: verdict.ExitIP}
}

// health is the status in Consul's words.
func (s status) health() string {
	if s.passing {
		return api.HealthPassing
	}
	return api.HealthCritical
}

// complete fills in what the configuration gives.
func (e Endpoint) complete(config Config) Endpoint {
	if e.Service == "" {
		e.Service = config.Service
	}
	if e.TTL == 0 {
		e.TTL = DefaultTTL
	}
	e.TTL = max(e.TTL, MinTTL)
	e.Tags = slices.Clone(e.Tags)
	e.Attributes = maps.Clone(e.Attributes)
	return e
}

// meta is what the lease service selects by. Keys without a value are left out.
func (e Endpoint) meta(config Config, exitIP netip.Addr) map[string]string {
	meta := map[string]string{
		"provider":   e.Provider,
		"zone":       e.Zone,
		"node":       config.Node,
		"cluster":    config.Cluster,
		"namespace":  e.Namespace,
		"job":        e.Job,
		"group":      e.Group,
		"alloc":      e.Alloc,
		"task":       e.Task,
		"instance":   e.Name,
		"auth":       e.Auth,
		"scheme":     "http",
		"max_leases": strconv.Itoa(e.MaxLeases),
	}
	if exitIP.IsValid() {
		meta["exit_ip"] = exitIP.String()
	}
	maps.DeleteFunc(meta, func(_, value string) bool { return value == "" })
	maps.Copy(meta, e.Attributes)
	return meta
}

// registration is the service with its check. The check carries the status:
// without it, Consul would start every new one as critical. A check that Consul
// knows already keeps the status it has there.
func (e Endpoint) registration(config Config, s status) *api.AgentServiceRegistration {
	tags := []string{"egress"}
	if s.exitIP.Is6() {
		tags = append(tags, "ipv6")
	}
	for _, tag := range e.Tags {
		if !slices.Contains(tags, tag) {
			tags = append(tags, tag)
		}
	}
	id := serviceID(e.Name)
	return &api.AgentServiceRegistration{
		ID:      id,
		Name:    e.Service,
		Address: e.Address,
		Port:    e.Port,
		Tags:    tags,
		Meta:    e.meta(config, s.exitIP),
		Check: &api.AgentServiceCheck{
			CheckID:                        id,
			Name:                           "fetches a URL through the proxy",
			TTL:                            e.TTL.String(),
			Status:                         s.health(),
			DeregisterCriticalServiceAfter: config.DeregisterAfter.String(),
		},
	}
}
