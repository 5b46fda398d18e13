package provider

import (
	"context"
	"time"
)

// Checker is an optional interface: the health of each target (each
// hypervisor, project, API server) of a provider.
type Checker interface {
	// Check asks every target at once and gives one verdict for each, in the
	// order of their names. It never fails as a whole and returns when ctx
	// ends, with Timeout for the targets that have not answered.
	Check(ctx context.Context) []Verdict
}

// Verdict is the health of one target.
type Verdict struct {
	// Target is the name of the place, as in Ref.Zone; "local" for the node.
	Target string
	// Ready says whether an instance could be launched there now.
	Ready bool
	// Reason is Reachable when ready, and otherwise the one word for why not.
	Reason Reason
	// Message explains the reason to a person and says what to do.
	Message string
	// Latency is how long the check took.
	Latency time.Duration
	// Facts are what was learned: "libvirt_version" = "9.0.0". Keys are lower
	// case with underscores and end in the unit; sizes are bare integers.
	Facts map[string]string
}

// Reason is a CamelCase word from a fixed set.
type Reason string

// The reasons. A provider uses those that fit it and no others.
const (
	Reachable                 Reason = "Reachable"
	Timeout                   Reason = "Timeout"
	Unreachable               Reason = "Unreachable"
	Unauthorized              Reason = "Unauthorized"
	Forbidden                 Reason = "Forbidden"
	APIError                  Reason = "APIError"
	SSHMaterialUnavailable    Reason = "SSHMaterialUnavailable"
	SSHHandshakeFailed        Reason = "SSHHandshakeFailed"
	LibvirtConnectFailed      Reason = "LibvirtConnectFailed"
	LibvirtError              Reason = "LibvirtError"
	PoolNotFound              Reason = "PoolNotFound"
	PoolNotActive             Reason = "PoolNotActive"
	PoolNearlyFull            Reason = "PoolNearlyFull"
	NetworkNotFound           Reason = "NetworkNotFound"
	FirmwareMissing           Reason = "FirmwareMissing"
	VirtualizationUnavailable Reason = "VirtualizationUnavailable"
	QuotaExhausted            Reason = "QuotaExhausted"
)
