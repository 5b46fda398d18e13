package process

import (
	"errors"
	"fmt"
	"time"

	"github.com/egress-proxies/egress/provider"
	"github.com/egress-proxies/egress/provider/process/forward"
)

// options are the keys of a provider block of type "process".
type options struct {
	// AllowClients bounds the networks from which clients may come.
	AllowClients []string `option:"allow_clients"`
	// AllowTargets are the private and local targets that may be reached.
	AllowTargets []string `option:"allow_targets"`
	// Command says whether tasks may run commands of their own.
	Command bool `option:"command"`
	// IdleTimeout bounds how long a connection may be idle; 0 is no bound.
	IdleTimeout time.Duration `option:"idle_timeout"`
	// MaxDuration bounds how long a tunnel may last; 0 is no bound.
	MaxDuration time.Duration `option:"max_duration"`
	// LogMaxMiB bounds the output that is kept of each instance.
	LogMaxMiB int `option:"log_max_mib"`
	// User is the account that every instance runs as.
	User string `option:"user"`
}

// decodeOptions gives the options and, as limits for the built-in proxy, what
// they mean.
func decodeOptions(given map[string]any) (options, forward.Config, error) {
	o := options{Command: true, IdleTimeout: forward.DefaultIdleTimeout, LogMaxMiB: 8}
	if err := provider.DecodeOptions(given, &o); err != nil {
		return o, forward.Config{}, err
	}
	limits := forward.Config{AllowClients: forward.PrivateClients(), IdleTimeout: o.IdleTimeout, MaxDuration: o.MaxDuration}
	var problems []error
	if o.AllowClients != nil {
		clients, err := parsePrefixes("allow_clients", o.AllowClients)
		limits.AllowClients, problems = clients, append(problems, err)
	}
	targets, err := parsePrefixes("allow_targets", o.AllowTargets)
	limits.AllowTargets, problems = targets, append(problems, err)
	if o.IdleTimeout < 0 {
		problems = append(problems, fmt.Errorf("idle_timeout: %s: want 0 (no limit) or more", o.IdleTimeout))
	}
	if o.MaxDuration < 0 {
		problems = append(problems, fmt.Errorf("max_duration: %s: want 0 (no limit) or more", o.MaxDuration))
	}
	if o.LogMaxMiB < 1 || o.LogMaxMiB > 1024 {
		problems = append(problems, fmt.Errorf("log_max_mib: %d: want 1 to 1024", o.LogMaxMiB))
	}
	return o, limits, errors.Join(problems...)
}
