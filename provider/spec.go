package provider

// Spec says what to launch. Fields that a provider has no use for are refused
// by its Validator when it has one, and ignored otherwise.
type Spec struct {
	// Name is the key of the instance, made by Name.
	Name string
	// Labels are attached to everything that is made for the instance.
	Labels Labels
	// Zone restricts the placement to one place. Empty lets the provider choose.
	Zone string
	// MachineType names a size in the provider's own terms. Empty sizes the
	// instance by Resources.
	MachineType string
	// Image is what to boot, in the provider's own terms.
	Image string
	// Port is where the proxy listens in the instance.
	Port int
	// UserData is handed to the guest byte for byte.
	UserData []byte
	// NetworkConfig is cloud-init's network-config, for the providers that
	// boot machines. Empty leaves it to the image.
	NetworkConfig []byte
	// Command runs instead of the provider's default proxy, for the providers
	// that can run a command.
	Command string
	// Args are the arguments of Command or, without one, further arguments of
	// the provider's default proxy.
	Args []string
	// Env is the environment of the command, as KEY=VALUE.
	Env []string
	// Dir is a directory on the Nomad node that belongs to the task; for
	// providers that run on the node.
	Dir string
	// User is the account on the Nomad node that a command runs as. Empty is
	// the provider's default.
	User string
	// Auth is what the proxy asks of its clients. Zero asks for nothing.
	Auth Credentials
	// Endpoint is where an instance that somebody else runs is reached; for
	// the external provider.
	Endpoint Endpoint
	// Listen is the address on the Nomad node to listen on, for the providers
	// that run there: the host address of the Nomad port. Empty is every one.
	Listen string
	// Bind is the source address of outgoing connections, for the providers
	// that run on the node. Empty leaves it to the kernel.
	Bind string
	// Resources are the task's share of the Nomad node.
	Resources Resources
}

// Credentials are a proxy's user and password.
type Credentials struct {
	// Username of Basic authentication. It can't contain a colon (RFC 7617).
	Username string
	// Password of Basic authentication.
	Password string
}

// IsZero is true when no credentials are set.
func (c Credentials) IsZero() bool { return c == Credentials{} }

// String never shows the password, so that printing a Spec can't leak it.
func (c Credentials) String() string {
	if c.IsZero() {
		return "none"
	}
	return c.Username + ":<redacted>"
}

// GoString is String, for %#v.
func (c Credentials) GoString() string { return c.String() }

// Endpoint is a host and a port.
type Endpoint struct {
	// Host is a name or an IP address.
	Host string
	// Port is between 1 and 65535.
	Port int
}

// Resources is a size.
type Resources struct {
	// Cores is the number of virtual CPUs; 0 is unset.
	Cores int
	// CPUMHz is Nomad's CPU share; 0 is unset.
	CPUMHz int64
	// MemoryMiB is in units of 2^20 bytes; 0 is unset.
	MemoryMiB int64
	// DiskMiB is in units of 2^20 bytes; 0 leaves it to the image.
	DiskMiB int64
}
