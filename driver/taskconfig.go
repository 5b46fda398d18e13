package driver

import (
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/nomad/plugins/drivers"

	"github.com/egress-proxies/egress/provider"
)

// taskConfig is a task's validated `config { … }`. It is kept in the driver
// state, since an agent that restarts doesn't have it any more; user_data and
// network_config are not, since they serve the start only.
type taskConfig struct {
	Provider      string            `json:"provider"`
	Zone          string            `json:"zone,omitempty"`
	MachineType   string            `json:"machine_type,omitempty"`
	Image         string            `json:"image,omitempty"`
	Port          string            `json:"port,omitempty"`
	Command       string            `json:"command,omitempty"`
	Args          []string          `json:"args,omitempty"`
	Bind          string            `json:"bind,omitempty"`
	UserData      string            `json:"-"`
	UserDataFile  string            `json:"user_data_file,omitempty"`
	NetworkConfig string            `json:"-"`
	Endpoint      provider.Endpoint `json:"endpoint"`
	Auth          authConfig        `json:"auth"`
	Probe         ProbeConfig       `json:"probe"`
	Service       serviceConfig     `json:"service"`
	Attributes    map[string]string `json:"attributes,omitempty"`
	MaxLeases     int               `json:"max_leases"`
	Drain         time.Duration     `json:"drain"`
	StartTimeout  time.Duration     `json:"start_timeout"`
}

// authConfig is what clients must present: the entry Name of the credentials
// file, or a username and a password.
type authConfig struct {
	Name     string `json:"name,omitempty"`
	Username string `json:"username,omitempty"`
	Password string `json:"password,omitempty"`
}

// inline is true when the credentials stand in the task itself.
func (a authConfig) inline() bool { return a.Username != "" || a.Password != "" }

// serviceConfig says how the proxy is registered in Consul.
type serviceConfig struct {
	Enabled bool     `json:"enabled"`
	Name    string   `json:"name"`
	Tags    []string `json:"tags,omitempty"`
}

type rawTask struct {
	Provider      *string           `codec:"provider"`
	Zone          *string           `codec:"zone"`
	MachineType   *string           `codec:"machine_type"`
	Image         *string           `codec:"image"`
	Port          *string           `codec:"port"`
	Command       *string           `codec:"command"`
	Args          []string          `codec:"args"`
	Bind          *string           `codec:"bind"`
	UserData      *string           `codec:"user_data"`
	UserDataFile  *string           `codec:"user_data_file"`
	NetworkConfig *string           `codec:"network_config"`
	Endpoint      *rawEndpoint      `codec:"endpoint"`
	Auth          *rawAuth          `codec:"auth"`
	Probe         *rawProbe         `codec:"probe"`
	Service       *rawService       `codec:"service"`
	Attributes    map[string]string `codec:"attributes"`
	MaxLeases     *string           `codec:"max_leases"`
	Drain         *string           `codec:"drain"`
	StartTimeout  *string           `codec:"start_timeout"`
}

type rawEndpoint struct {
	Host *string `codec:"host"`
	Port *string `codec:"port"`
}

type rawAuth struct {
	Name     *string `codec:"name"`
	Username *string `codec:"username"`
	Password *string `codec:"password"`
}

type rawService struct {
	Enabled *string  `codec:"enabled"`
	Name    *string  `codec:"name"`
	Tags    []string `codec:"tags"`
}

// Limits of a task's configuration.
const (
	maxPort      = 65535
	maxMaxLeases = 1_000_000
)

// decodeTask decodes and validates the config of a task. Everything that is
// wrong is told at once, and none of it can be cured by another try.
func (c Config) decodeTask(cfg *drivers.TaskConfig, places map[string]*place) (taskConfig, error) {
	var raw rawTask
	if err := cfg.DecodeDriverConfig(&raw); err != nil {
		return taskConfig{}, fmt.Errorf("decode the task's config: %w", err)
	}
	p := newProblems()
	task := taskConfig{
		Provider:      c.chooseProvider(raw.Provider, places, p),
		Zone:          p.text(raw.Zone, ""),
		MachineType:   p.text(raw.MachineType, ""),
		Image:         p.text(raw.Image, ""),
		Port:          p.text(raw.Port, ""),
		Command:       p.text(raw.Command, ""),
		Args:          raw.Args,
		Bind:          p.text(raw.Bind, ""),
		UserData:      p.text(raw.UserData, ""),
		UserDataFile:  p.text(raw.UserDataFile, ""),
		NetworkConfig: p.text(raw.NetworkConfig, ""),
		Auth:          newAuth(raw.Auth, p.in("auth")),
		Probe:         newProbeConfig(raw.Probe, c.Probe, p.in("probe")),
		Service:       c.newService(raw.Service, p.in("service")),
		Attributes:    raw.Attributes,
		MaxLeases:     p.whole("max_leases", raw.MaxLeases, 1, 0, maxMaxLeases),
		Drain:         p.duration("drain", raw.Drain, 0, 0),
		StartTimeout:  p.duration("start_timeout", raw.StartTimeout, c.StartTimeout, minStartTimeout),
	}
	place := places[task.Provider]
	if place != nil {
		task.Endpoint = newEndpoint(raw.Endpoint, place, p.in("endpoint"))
	}
	task.check(place, p)
	return task, p.err()
}

func (c Config) chooseProvider(name *string, places map[string]*place, p *problems) string {
	known := strings.Join(slices.Sorted(maps.Keys(places)), ", ")
	if name == nil || *name == "" {
		if len(c.Providers) == 1 {
			return c.Providers[0].Name
		}
		p.missing("provider", "want one of "+known)
		return ""
	}
	if places[*name] == nil {
		p.add("provider", *name, "want one of "+known)
	}
	return *name
}

func newEndpoint(raw *rawEndpoint, place *place, p *problems) provider.Endpoint {
	external := place.kind == "external"
	if raw == nil {
		if external {
			p.missing("host", "the provider launches nothing and must know where the proxy is")
		}
		return provider.Endpoint{}
	}
	endpoint := provider.Endpoint{
		Host: p.text(raw.Host, ""),
		Port: p.whole("port", raw.Port, 0, 1, maxPort),
	}
	if !external {
		p.add("host", endpoint.Host, fmt.Sprintf("provider %q launches its own proxies; only one of type external has an endpoint",
			place.name))
	}
	if endpoint.Host == "" {
		p.missing("host", "want a name or an address")
	} else if strings.ContainsAny(endpoint.Host, ":/ ") && net.ParseIP(endpoint.Host) == nil {
		p.add("host", endpoint.Host, "want a name or an address, without scheme and port")
	}
	if raw.Port == nil {
		p.missing("port", fmt.Sprintf("want a number from 1 to %d", maxPort))
	}
	return endpoint
}

func newAuth(raw *rawAuth, p *problems) authConfig {
	if raw == nil {
		return authConfig{}
	}
	auth := authConfig{
		Name: p.text(raw.Name, ""), Username: p.text(raw.Username, ""), Password: p.text(raw.Password, ""),
	}
	if strings.Contains(auth.Username, ":") {
		p.add("username", auth.Username, "want one without a colon, which Basic authentication can't carry (RFC 7617)")
	}
	if auth.Username == "" && auth.Password != "" {
		p.missing("username", "a password is set")
	}
	if auth == (authConfig{}) {
		p.missing("name", "want the name of an entry of the credentials file, or username and password")
	}
	return auth
}

func (c Config) newService(raw *rawService, p *problems) serviceConfig {
	if raw == nil {
		raw = new(rawService)
	}
	service := serviceConfig{
		Enabled: p.yes("enabled", raw.Enabled, true) && c.Consul.Enabled,
		Name:    p.text(raw.Name, c.Consul.Service),
		Tags:    raw.Tags,
	}
	checkService(p, "name", service.Name)
	return service
}
