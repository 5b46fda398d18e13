package driver

import (
	"fmt"
	"time"

	"github.com/hashicorp/nomad/plugins/base"

	"github.com/egress-proxies/egress/driver/registry"
	"github.com/egress-proxies/egress/fingerprint"
	"github.com/egress-proxies/egress/provider"
)

// Config is the validated configuration of the plugin: what stands in an
// agent's `plugin "egress" { config { … } }`.
type Config struct {
	// Cluster is the id of this egress installation; default "default".
	Cluster string
	// StateDir is where the plugin keeps what must outlive it; default
	// /var/lib/egress.
	StateDir string
	// StartTimeout bounds the start of a task that sets none; default 5m.
	StartTimeout time.Duration
	// CredentialsFile is a JSON object of name to username and password. It is
	// read again when it changes. Empty is none.
	CredentialsFile string
	// Consul is where proxies are registered.
	Consul ConsulConfig
	// Nomad is asked which allocations live, for garbage collection.
	Nomad NomadConfig
	// Fingerprint says how the providers are checked.
	Fingerprint FingerprintConfig
	// MetricsAddress is where the plugin serves its metrics, host:port. Empty
	// serves none.
	MetricsAddress string
	// Probe has the defaults of the tasks' probes.
	Probe ProbeConfig
	// Providers are the provider blocks in the order of their names.
	Providers []provider.Config
}

// ConsulConfig is the consul block.
type ConsulConfig struct {
	// Enabled is false when nothing is to be registered; default true.
	Enabled bool
	// Address of the local agent, host:port or URL; empty is Consul's own
	// default (CONSUL_HTTP_ADDR, else 127.0.0.1:8500).
	Address string
	// Token and TokenFile authorise; the file is read again when it changes.
	Token, TokenFile string
	// CAFile verifies an https address.
	CAFile string
	// Service is the default name of the tasks' service: egress-proxy.
	Service string
	// TargetService is the name of the service of the providers' targets:
	// egress-target. Empty registers no targets.
	TargetService string
	// DeregisterAfter is how long Consul keeps a proxy whose check stays
	// critical; default 10m, at least Consul's own least of 1m.
	DeregisterAfter time.Duration
}

// NomadConfig is the nomad block.
type NomadConfig struct {
	// Address is the URL of an agent; empty is Nomad's own default (NOMAD_ADDR,
	// else http://127.0.0.1:4646).
	Address string
	// Token must be allowed to read jobs in every namespace that has proxies.
	Token string
}

// FingerprintConfig is the fingerprint block.
type FingerprintConfig struct {
	// Interval is from the start of one round of checks to the next, 30s by
	// default.
	Interval time.Duration
	// Timeout bounds one check, 20s by default.
	Timeout time.Duration
}

// ProbeConfig says how a proxy is proven.
type ProbeConfig struct {
	// Enabled is true unless a task switches its probe off.
	Enabled bool `json:"enabled"`
	// URLs are fetched through the proxy; it works when one of them does.
	URLs []string `json:"urls,omitempty"`
	// Interval is between two probes, 10s by default.
	Interval time.Duration `json:"interval"`
	// Timeout bounds one probe, 5s by default.
	Timeout time.Duration `json:"timeout"`
	// Successes and Failures are how many in a row change the verdict, 1 and 3
	// by default.
	Successes int `json:"successes"`
	Failures  int `json:"failures"`
	// CAFile verifies the URLs instead of the system's certificates.
	CAFile string `json:"ca_file,omitempty"`
	// ExitIPURL answers with the address that it sees. Empty asks nobody.
	ExitIPURL string `json:"exit_ip_url,omitempty"`
}

// Limits and defaults of the configuration.
const (
	defaultStateDir     = "/var/lib/egress"
	defaultStartTimeout = 5 * time.Minute
	minStartTimeout     = time.Second
	minDeregisterAfter  = time.Minute // Consul rounds anything shorter up to it
	maxThreshold        = 100
	// minCheck keeps a typo from checking a hypervisor without a pause.
	minCheck = 100 * time.Millisecond
)

var defaultProbe = ProbeConfig{
	Enabled: true, Interval: 10 * time.Second, Timeout: 5 * time.Second, Successes: 1, Failures: 3,
}

// decodeConfig decodes what the agent sends to SetConfig.
func decodeConfig(packed []byte) (Config, error) {
	var raw rawConfig
	if len(packed) > 0 {
		if err := base.MsgPackDecode(packed, &raw); err != nil {
			return Config{}, fmt.Errorf("decode the plugin's config: %w", err)
		}
	}
	return newConfig(raw)
}

func newConfig(raw rawConfig) (Config, error) {
	p := newProblems()
	if raw.Consul == nil {
		raw.Consul = new(rawConsul)
	}
	if raw.Nomad == nil {
		raw.Nomad = new(rawNomad)
	}
	config := Config{
		Cluster:         p.text(raw.Cluster, "default"),
		StateDir:        p.text(raw.StateDir, defaultStateDir),
		StartTimeout:    p.duration("start_timeout", raw.StartTimeout, defaultStartTimeout, minStartTimeout),
		CredentialsFile: p.text(raw.CredentialsFile, ""),
		Consul:          newConsulConfig(*raw.Consul, p.in("consul")),
		Nomad:           newNomadConfig(*raw.Nomad, p.in("nomad")),
		Probe:           newProbeConfig(raw.Probe, defaultProbe, p.in("probe")),
		Providers:       newProviderConfigs(raw.Provider, p),
	}
	if raw.Fingerprint == nil {
		raw.Fingerprint = new(rawFingerprint)
	}
	config.Fingerprint = newFingerprintConfig(*raw.Fingerprint, p.in("fingerprint"))
	if raw.Metrics != nil {
		config.MetricsAddress = p.text(raw.Metrics.Address, "")
		p.in("metrics").listenAddress("address", config.MetricsAddress)
	}
	p.path("credentials_file", config.CredentialsFile)
	p.note(provider.CheckPlace("cluster", config.Cluster))
	if p.path("state_dir", config.StateDir); config.StateDir == "" {
		p.add("state_dir", "", "want an absolute path")
	}
	return config, p.err()
}

func newConsulConfig(raw rawConsul, p *problems) ConsulConfig {
	config := ConsulConfig{
		Enabled:         p.yes("enabled", raw.Enabled, true),
		Address:         p.text(raw.Address, ""),
		Token:           p.text(raw.Token, ""),
		TokenFile:       p.text(raw.TokenFile, ""),
		CAFile:          p.text(raw.CAFile, ""),
		Service:         p.text(raw.Service, registry.DefaultService),
		TargetService:   p.text(raw.TargetService, registry.DefaultTargetService),
		DeregisterAfter: p.duration("deregister_after", raw.DeregisterAfter, 10*time.Minute, minDeregisterAfter),
	}
	checkService(p, "service", config.Service)
	if config.TargetService != "" {
		checkService(p, "target_service", config.TargetService)
	}
	if config.TargetService == config.Service {
		p.add("target_service", config.TargetService, "want another name than that of service")
	}
	p.consulAddress("address", config.Address)
	p.path("token_file", config.TokenFile)
	p.path("ca_file", config.CAFile)
	if config.Token != "" && config.TokenFile != "" {
		p.add("token_file", config.TokenFile, "token is set too: want one of them")
	}
	return config
}

func newNomadConfig(raw rawNomad, p *problems) NomadConfig {
	config := NomadConfig{Address: p.text(raw.Address, ""), Token: p.text(raw.Token, "")}
	p.nomadAddress("address", config.Address)
	return config
}

func newFingerprintConfig(raw rawFingerprint, p *problems) FingerprintConfig {
	return FingerprintConfig{
		Interval: p.duration("interval", raw.Interval, fingerprint.DefaultInterval, minCheck),
		Timeout:  p.duration("timeout", raw.Timeout, fingerprint.DefaultTimeout, minCheck),
	}
}

func newProbeConfig(raw *rawProbe, or ProbeConfig, p *problems) ProbeConfig {
	if raw == nil {
		return or
	}
	config := ProbeConfig{
		Enabled:   p.yes("enabled", raw.Enabled, or.Enabled),
		URLs:      or.URLs,
		Interval:  p.duration("interval", raw.Interval, or.Interval, 100*time.Millisecond),
		Timeout:   p.duration("timeout", raw.Timeout, or.Timeout, 100*time.Millisecond),
		Successes: p.whole("successes", raw.Successes, or.Successes, 1, maxThreshold),
		Failures:  p.whole("failures", raw.Failures, or.Failures, 1, maxThreshold),
		CAFile:    p.text(raw.CAFile, or.CAFile),
		ExitIPURL: p.text(raw.ExitIPURL, or.ExitIPURL),
	}
	if len(raw.URLs) > 0 {
		config.URLs = raw.URLs
	}
	p.path("ca_file", config.CAFile)
	for _, url := range config.URLs {
		p.webURL("urls", url)
	}
	if config.ExitIPURL != "" {
		p.webURL("exit_ip_url", config.ExitIPURL)
	}
	return config
}
