package driver

// What the schema gives: a value that was not given is nil.

type rawConfig struct {
	Cluster         *string                   `codec:"cluster"`
	StateDir        *string                   `codec:"state_dir"`
	StartTimeout    *string                   `codec:"start_timeout"`
	CredentialsFile *string                   `codec:"credentials_file"`
	Consul          *rawConsul                `codec:"consul"`
	Nomad           *rawNomad                 `codec:"nomad"`
	Metrics         *rawMetrics               `codec:"metrics"`
	Fingerprint     *rawFingerprint           `codec:"fingerprint"`
	Probe           *rawProbe                 `codec:"probe"`
	Provider        map[string]map[string]any `codec:"provider"`
}

type rawConsul struct {
	Enabled         *string `codec:"enabled"`
	Address         *string `codec:"address"`
	Token           *string `codec:"token"`
	TokenFile       *string `codec:"token_file"`
	CAFile          *string `codec:"ca_file"`
	Service         *string `codec:"service"`
	TargetService   *string `codec:"target_service"`
	DeregisterAfter *string `codec:"deregister_after"`
}

type rawNomad struct {
	Address *string `codec:"address"`
	Token   *string `codec:"token"`
}

type rawFingerprint struct {
	Interval *string `codec:"interval"`
	Timeout  *string `codec:"timeout"`
}

type rawMetrics struct {
	Address *string `codec:"address"`
}

type rawProbe struct {
	Enabled   *string  `codec:"enabled"`
	URLs      []string `codec:"urls"`
	Interval  *string  `codec:"interval"`
	Timeout   *string  `codec:"timeout"`
	Successes *string  `codec:"successes"`
	Failures  *string  `codec:"failures"`
	CAFile    *string  `codec:"ca_file"`
	ExitIPURL *string  `codec:"exit_ip_url"`
}
