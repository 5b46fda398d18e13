package driver

import (
	"context"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/plugins/drivers"

	"github.com/egress-proxies/egress/driver/loghold"
	"github.com/egress-proxies/egress/driver/probe"
	"github.com/egress-proxies/egress/provider"
)

// handle is one task, from the moment its instance exists until it is
// destroyed. Its goroutines are its own: observe, which alone closes done, the
// probe loop and the log pump.
type handle struct {
	cfg         *drivers.TaskConfig
	slot        slot
	place       *place
	task        taskConfig
	listener    listener
	labels      provider.Labels
	startedAt   time.Time
	timing      *timing
	logger      hclog.Logger
	events      *events
	registrar   registrar
	credentials *credentials
	newProber   proberFactory

	// ctx is the life of the goroutines; its cause says why it ended.
	ctx    context.Context
	cancel context.CancelCauseFunc
	wg     sync.WaitGroup
	// probing is the life of the probe loop, which ends before the others.
	probing     context.Context
	stopProbing context.CancelFunc
	// done is closed by observe when the instance has ended, after result is set.
	done chan struct{}
	// logs is the life of the log pump, which outlasts the instance a little;
	// logsDone is closed when it has ended.
	logs     context.Context
	stopLogs context.CancelFunc
	logsDone chan struct{}
	offsets  offsets
	holder   *loghold.Client // keeps the log collector over a plugin's death; nil is none

	// registered is what stands in Consul; first start's, then publish's.
	registered provider.Endpoint
	// given are the credentials that the instance has, nil when that is unknown;
	// rotationFailed is true once it was told that it does not take others. Of
	// the same goroutine as registered.
	given          *provider.Credentials
	rotationFailed bool

	mu          sync.Mutex // guards what follows
	instance    provider.Instance
	changed     chan struct{} // closed and replaced when instance changes
	leave       func()        // ends what works with the address as it was
	prober      prober        // nil until the address is known
	verdict     probe.Verdict
	stopping    bool
	forced      error // why the instance is being deleted while it runs
	result      *drivers.ExitResult
	completedAt time.Time
}

// run starts observing. The goroutines end when the instance has ended, or
// when retire is called.
func (h *handle) run() {
	h.wg.Go(h.observe)
	h.wg.Go(h.pumpLogs)
}

// retire ends the goroutines and waits for them. The instance is left alone.
func (h *handle) retire(cause error) {
	h.cancel(cause)
	h.wg.Wait()
}

// ref is where the instance is.
func (h *handle) ref() provider.Ref {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.instance.Ref
}

// snapshot is the instance as it was last seen, and a channel that is closed
// when that changes.
func (h *handle) snapshot() (provider.Instance, <-chan struct{}) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.instance, h.changed
}

// endpoint is the address and the port, and a context that ends when they
// change or the instance does.
func (h *handle) endpoint(parent context.Context) (ctx context.Context, address string, port int) {
	ctx, cancel := context.WithCancel(parent)
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.leave != nil {
		h.leave()
	}
	h.leave = cancel
	if h.ended() {
		cancel()
	}
	return ctx, h.instance.Address, h.port()
}

// port is called with the lock held.
func (h *handle) port() int {
	if h.instance.Port != 0 {
		return h.instance.Port
	}
	return h.listener.port
}

// update takes a new state of the instance. A state without an address keeps
// the last one: it is what clients were told, and the machine may be rebooting.
func (h *handle) update(seen provider.Instance) {
	h.mu.Lock()
	defer h.mu.Unlock()
	before := h.instance
	if seen.Address == "" {
		seen.Address, seen.Addresses = before.Address, before.Addresses
	}
	if seen.Zone == "" {
		seen.Zone = before.Zone
	}
	seen.Name = before.Name
	if seen.Port == 0 {
		seen.Port = before.Port
	}
	h.instance = seen
	if h.leave != nil && (seen.Address != before.Address || seen.Port != before.Port) {
		h.leave()
	}
	close(h.changed)
	h.changed = make(chan struct{})
}

// ended is true when the instance has ended.
func (h *handle) ended() bool {
	select {
	case <-h.done:
		return true
	default:
		return false
	}
}

func (h *handle) setStopping() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.stopping = true
}

func (h *handle) setForced(why error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.forced = why
}

func (h *handle) isStopping() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.stopping
}

// state is what Nomad keeps.
func (h *handle) state() taskState {
	h.mu.Lock()
	defer h.mu.Unlock()
	return taskState{
		Schema:     stateSchema,
		Provider:   h.place.name,
		Ref:        h.instance.Ref,
		InstanceID: h.instance.ID,
		Address:    h.instance.Address,
		Port:       h.port(),
		PortLabel:  h.listener.label,
		Labels:     h.labels,
		Task:       h.task,
		StartedAt:  h.startedAt,
	}
}

// network is the address for Nomad's own services.
func (h *handle) network() *drivers.DriverNetwork {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.listener.network(h.place, h.instance.Address, h.port())
}

// status answers InspectTask.
func (h *handle) status() *drivers.TaskStatus {
	network := h.network()
	h.mu.Lock()
	defer h.mu.Unlock()
	status := &drivers.TaskStatus{
		ID:              h.cfg.ID,
		Name:            h.cfg.Name,
		State:           drivers.TaskStateRunning,
		StartedAt:       h.startedAt,
		CompletedAt:     h.completedAt,
		NetworkOverride: network,
		DriverAttributes: map[string]string{
			"provider":       h.place.name,
			"instance":       h.instance.Name,
			"instance_id":    h.instance.ID,
			"instance_state": h.instance.State.String(),
			"zone":           h.instance.Zone,
			"address":        h.instance.Address,
		},
	}
	if h.verdict.Known() {
		status.DriverAttributes["probe"] = h.verdict.Message
	}
	if h.verdict.ExitIP.IsValid() {
		status.DriverAttributes["exit_ip"] = h.verdict.ExitIP.String()
	}
	if h.result != nil {
		status.State, status.ExitResult = drivers.TaskStateExited, h.result.Copy()
	}
	return status
}
