package command

import (
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/egress-proxies/egress/lease"
)

// serving are the flags of `egress lease serve`.
type serving struct {
	listen          string
	consulAddress   string
	consulTokenFile string
	services        []string
	targetService   string
	credentialsFile string
	credentialsKV   string
	networksFile    string
	tokenFile       string
	tlsCert         string
	tlsKey          string
	caFile          string
	store           string
	prefix          string
	advertise       string
	rate            float64
	shutdown        time.Duration
	logLevel        string
	logJSON         bool
	targetMatch     string
	rules           lease.Rules
}

func serveCommand() *cobra.Command {
	s := serving{rules: lease.DefaultRules()}
	command := &cobra.Command{
		Use:   "serve",
		Short: "Run the lease service",
		Long: `Run the lease service: it watches the proxies in Consul and leases the working
ones to crawlers over HTTP. docs/lease-api.md describes the API.

Every flag can be an environment variable: --max-ttl is EGRESS_LEASE_MAX_TTL.`,
		Example: `  egress lease serve
  egress lease serve --listen 0.0.0.0:7700 --token-file /etc/egress/tokens.json
  curl -s -X POST http://127.0.0.1:7700/v1/leases -d '{"selector":"country=DE"}'`,
		Args: cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			if err := fromEnv(command.Flags()); err != nil {
				return err
			}
			return s.run(command.Context())
		},
	}
	s.flags(command.Flags())
	return command
}

func (s *serving) flags(f *pflag.FlagSet) {
	f.StringVar(&s.listen, "listen", defaultAddress, "address to listen on; beyond loopback a --token-file is required")
	f.StringVar(&s.consulAddress, "consul-address", "", "address of Consul's HTTP API (default: CONSUL_HTTP_ADDR or 127.0.0.1:8500)")
	f.StringVar(&s.consulTokenFile, "consul-token-file", "", "file with the Consul token")
	f.StringSliceVar(&s.services, "service", []string{"egress-proxy"}, "Consul service of the proxies; may be repeated")
	f.StringVar(&s.targetService, "target-service", "egress-target", "Consul service of the providers' targets, for /v1/targets; empty: none")
	f.StringVar(&s.credentialsFile, "credentials-file", "", `JSON file with the proxies' credentials: {"name":{"username":"…","password":"…"}}`)
	f.StringVar(&s.credentialsKV, "credentials-prefix", "", "prefix in Consul's key-value store below which credentials are, by name")
	f.StringVar(&s.networksFile, "networks-file", "", "file with facts about exit addresses, which win over labels: 192.0.2.0/24 country=DE")
	f.StringVar(&s.tokenFile, "token-file", "", "file with the bearer token, or with JSON of named tokens and scopes")
	f.StringVar(&s.tlsCert, "tls-cert", "", "certificate file; with it the service speaks HTTPS")
	f.StringVar(&s.tlsKey, "tls-key", "", "key file of --tls-cert")
	f.StringVar(&s.caFile, "ca-file", "", "authorities of the other replicas' certificates (default: the system's)")
	f.StringVar(&s.store, "store", "memory", "where leases live: memory (one process, lost at its end), or consul (any number of replicas)")
	f.StringVar(&s.prefix, "consul-prefix", "egress/lease/", "where leases live in Consul's key-value store; replicas share it")
	f.StringVar(&s.advertise, "advertise", "", "URL at which other replicas reach this one (default: made of --listen)")
	f.Float64Var(&s.rate, "rate", 0, "requests a second that each token may make; 0 is unlimited")
	f.DurationVar(&s.rules.DefaultTTL, "default-ttl", s.rules.DefaultTTL, "length of a lease that does not say")
	f.DurationVar(&s.rules.MaxTTL, "max-ttl", s.rules.MaxTTL, "longest lease")
	f.DurationVar(&s.rules.MaxWait, "max-wait", s.rules.MaxWait, "longest time to queue")
	f.IntVar(&s.rules.MaxCount, "max-count", s.rules.MaxCount, "largest batch")
	f.IntVar(&s.rules.MaxWaiting, "max-waiting", s.rules.MaxWaiting, "most acquires that may queue")
	f.DurationVar(&s.rules.Blocked.Base, "blocked-cooldown", s.rules.Blocked.Base, "first cooldown of a target that blocked an exit; doubles")
	f.DurationVar(&s.rules.Blocked.Cap, "blocked-cooldown-max", s.rules.Blocked.Cap, "longest cooldown of a target")
	f.DurationVar(&s.rules.Failed.Base, "failed-cooldown", s.rules.Failed.Base, "first cooldown of an exit that failed; doubles")
	f.DurationVar(&s.rules.Failed.Cap, "failed-cooldown-max", s.rules.Failed.Cap, "longest cooldown of an exit")
	f.DurationVar(&s.rules.SessionIdle, "session-idle", s.rules.SessionIdle, "how long a session is remembered after its last lease")
	f.StringVar(&s.targetMatch, "target-match", "host", "what a target is: host (and port), or domain (registrable, by the public suffix list)")
	f.DurationVar(&s.shutdown, "shutdown-timeout", 10*time.Second, "how long requests may take to finish at the end")
	f.StringVar(&s.logLevel, "log-level", "info", "trace, debug, info, warn or error; info has the access log")
	f.BoolVar(&s.logJSON, "log-json", false, "log JSON")
	f.SetNormalizeFunc(func(_ *pflag.FlagSet, name string) pflag.NormalizedName {
		if name == "consul" {
			name = "consul-address"
		}
		return pflag.NormalizedName(name)
	})
}

// check refuses what can't work before anything is opened.
func (s *serving) check() error {
	host, _, err := net.SplitHostPort(s.listen)
	if err != nil {
		return fmt.Errorf("--listen %q: want host:port", s.listen)
	}
	if s.tokenFile == "" && !isLoopback(host) {
		return fmt.Errorf("--listen %q: anybody who reaches it could take every proxy: want a --token-file, or a loopback address", s.listen)
	}
	if s.store != "memory" && s.store != "consul" {
		return fmt.Errorf("--store %q: want memory or consul", s.store)
	}
	if (s.tlsCert == "") != (s.tlsKey == "") {
		return errors.New("--tls-cert and --tls-key: want both or none")
	}
	if ip := net.ParseIP(host); s.store == "consul" && s.advertise == "" && (host == "" || ip != nil && ip.IsUnspecified()) {
		return fmt.Errorf("--listen %q: other replicas can't use that address: want --advertise with a URL", s.listen)
	}
	if !strings.HasSuffix(s.prefix, "/") || strings.HasPrefix(s.prefix, "/") {
		return fmt.Errorf("--consul-prefix %q: want a path such as egress/lease/", s.prefix)
	}
	switch scope := lease.Scope(s.targetMatch); scope {
	case lease.ScopeHost, lease.ScopeDomain:
		s.rules.Scope = scope
	default:
		return fmt.Errorf("--target-match %q: want host or domain", s.targetMatch)
	}
	if hclog.LevelFromString(s.logLevel) == hclog.NoLevel {
		return fmt.Errorf("--log-level %q: want trace, debug, info, warn or error", s.logLevel)
	}
	if len(s.services) == 0 {
		return errors.New("--service: want at least one name")
	}
	return nil
}

func isLoopback(host string) bool {
	if host == "localhost" {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}
