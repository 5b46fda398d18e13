package process

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/egress-proxies/egress/provider"
	"github.com/egress-proxies/egress/provider/process/forward"
)

// proxyFlags are the flags of the built-in proxy that a task may give as args;
// `egress proxy` has them as well.
type proxyFlags struct {
	allowClients []string
	allowTargets []string
	idleTimeout  time.Duration
	maxDuration  time.Duration
	dialTimeout  time.Duration
	drainTimeout time.Duration
	headerBytes  int
	accessLog    string
}

func (f *proxyFlags) add(set *pflag.FlagSet, defaults forward.Config) {
	set.StringSliceVar(&f.allowClients, "allow-client", texts(defaults.AllowClients),
		"network that clients may come from; repeat for more")
	set.StringSliceVar(&f.allowTargets, "allow-target", texts(defaults.AllowTargets),
		"private or local network that may be reached all the same; repeat for more")
	set.DurationVar(&f.idleTimeout, "idle-timeout", defaults.IdleTimeout,
		"end a connection on which nothing moved for so long; 0 is never")
	set.DurationVar(&f.maxDuration, "max-duration", defaults.MaxDuration,
		"end a tunnel or a request that takes longer; 0 is never")
	set.DurationVar(&f.dialTimeout, "dial-timeout", 30*time.Second,
		"longest way to a target, with name resolution")
	set.DurationVar(&f.drainTimeout, "drain-timeout", 30*time.Second,
		"how long tunnels may go on after SIGTERM")
	set.IntVar(&f.headerBytes, "max-header-bytes", 64<<10,
		"longest header of a request")
	set.StringVar(&f.accessLog, "access-log", "json",
		"format of the access log on standard output: json, text or off")
}

// config is what the flags say, parsed.
func (f *proxyFlags) config() (forward.Config, error) {
	clients, err := parsePrefixes("--allow-client", f.allowClients)
	targets, err2 := parsePrefixes("--allow-target", f.allowTargets)
	return forward.Config{
		AllowClients:   clients,
		AllowTargets:   targets,
		IdleTimeout:    f.idleTimeout,
		MaxDuration:    f.maxDuration,
		DialTimeout:    f.dialTimeout,
		DrainTimeout:   f.drainTimeout,
		MaxHeaderBytes: f.headerBytes,
		AccessLog:      f.accessLog,
	}, errors.Join(err, err2)
}

func texts(prefixes []netip.Prefix) []string {
	out := make([]string, len(prefixes))
	for i, prefix := range prefixes {
		out[i] = prefix.String()
	}
	return out
}

// proxyConfig is the configuration of the built-in proxy for a task: its args
// within the operator's limits.
func (p *Provider) proxyConfig(spec provider.Spec) (forward.Config, error) {
	var flags proxyFlags
	set := pflag.NewFlagSet("args", pflag.ContinueOnError)
	set.SetOutput(io.Discard)
	set.Usage = func() {}
	flags.add(set, p.limits)
	if err := set.Parse(spec.Args); err != nil {
		var names []string
		set.VisitAll(func(flag *pflag.Flag) { names = append(names, "--"+flag.Name) })
		return forward.Config{}, fmt.Errorf("%w: want flags of the built-in proxy: %s", err, strings.Join(names, ", "))
	}
	if rest := set.Args(); len(rest) > 0 {
		return forward.Config{}, fmt.Errorf("%q: want flags of the built-in proxy only", rest[0])
	}
	config, err := flags.config()
	if err != nil {
		return forward.Config{}, err
	}
	if err := within(config, p.limits); err != nil {
		return forward.Config{}, err
	}
	config.Listen = net.JoinHostPort(spec.Listen, strconv.Itoa(spec.Port))
	config.Username, config.Password = spec.Auth.Username, spec.Auth.Password
	if spec.Bind != "" {
		if config.Bind, err = netip.ParseAddr(spec.Bind); err != nil {
			return forward.Config{}, err // Validate has told it already
		}
	}
	return config, config.Validate()
}

// within refuses args that go beyond what the operator allows: a task may
// narrow, never widen.
func within(asked, limits forward.Config) error {
	var problems []error
	networks := func(flag, key string, asked, limits []netip.Prefix) {
		for _, prefix := range asked {
			if !covered(prefix, limits) {
				problems = append(problems, fmt.Errorf("--%s %s: the provider's %s has only %s", flag, prefix, key, list(limits)))
			}
		}
	}
	networks("allow-client", "allow_clients", asked.AllowClients, limits.AllowClients)
	networks("allow-target", "allow_targets", asked.AllowTargets, limits.AllowTargets)
	duration := func(flag, key string, asked, limit time.Duration) {
		if limit > 0 && (asked == 0 || asked > limit) {
			problems = append(problems, fmt.Errorf("--%s %s: the provider's %s is %s", flag, asked, key, limit))
		}
	}
	duration("idle-timeout", "idle_timeout", asked.IdleTimeout, limits.IdleTimeout)
	duration("max-duration", "max_duration", asked.MaxDuration, limits.MaxDuration)
	return errors.Join(problems...)
}

func covered(prefix netip.Prefix, by []netip.Prefix) bool {
	for _, limit := range by {
		if limit.Bits() <= prefix.Bits() && limit.Contains(prefix.Addr()) {
			return true
		}
	}
	return false
}

func list(prefixes []netip.Prefix) string {
	if len(prefixes) == 0 {
		return "none"
	}
	return strings.Join(texts(prefixes), ", ")
}
