package driver

import (
	"context"
	"errors"
	"io"
	"maps"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/plugins"
	"github.com/hashicorp/nomad/plugins/base"
	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/hashicorp/nomad/plugins/shared/hclspec"

	"github.com/egress-proxies/egress/driver/gc"
	"github.com/egress-proxies/egress/driver/probe"
	"github.com/egress-proxies/egress/driver/registry"
	"github.com/egress-proxies/egress/fingerprint"
	"github.com/egress-proxies/egress/provider"
)

// Options of New.
type Options struct {
	// Factories are the provider types that a configuration may name.
	Factories provider.Factories
	// Version of the plugin, as in "1.2.3"; empty is "0.0.0".
	Version string
	// Logger goes to the agent; nil logs nothing.
	Logger hclog.Logger
}

// Driver is the task driver. It is made for one process: what it starts goes on
// when it closes, and the next one recovers it.
type Driver struct {
	options     Options
	logger      hclog.Logger
	timing      *timing
	events      *events
	store       *store
	newProber   proberFactory
	newRegistry func(registry.Config) (registrar, error)
	newTargets  func(registry.TargetConfig) (targetRegistrar, error)
	newNomad    func(NomadConfig) (gc.Nomad, error)
	holdLogs    bool // only the real binary has loghold's verbs

	ctx    context.Context // ends with Close
	cancel context.CancelCauseFunc
	wg     sync.WaitGroup

	mu        sync.Mutex           // guards what follows
	settings  *settings            // nil before SetConfig
	registrar registrar            // nil before the first task
	monitor   *fingerprint.Monitor // nil before begin
	begun     bool
	closed    bool

	orphaned chan struct{} // wakes the collector; holds one
}

// settings are a configuration with what was made of it. They don't change;
// SetConfig replaces them.
type settings struct {
	config      Config
	places      map[string]*place
	credentials *credentials
	records     records
	offsets     offsets
}

// timing are the bounds and intervals that are not for users to set.
type timing struct {
	poll, pollStart, pollMax time.Duration // asking for the state of an instance
	get                      time.Duration // bound of one such question
	deregister               time.Duration // what an end waits for Consul
	cleanup                  time.Duration // bound of cleaning up after a failed start
	destroy                  time.Duration // bound of DestroyTask, and of the force in StopTask
	drainLogs                time.Duration // what an end waits for the log collector
	logRetry, saveOffset     time.Duration
	reconcile                time.Duration // how long recovered tasks have to claim their registrations
	collect, collectMax      time.Duration // retries of deletes that failed
	strays                   time.Duration // between two looks for instances that nobody came back for
	renew, rotate            time.Duration // between two looks at the credentials file; bound of handing them over
	firstCheck               time.Duration // what the first fingerprint waits for the health of the providers
}

var defaultTiming = timing{
	poll: 5 * time.Second, pollStart: 500 * time.Millisecond, pollMax: time.Minute,
	get:        15 * time.Second,
	deregister: 5 * time.Second,
	cleanup:    45 * time.Second,
	destroy:    time.Minute,
	drainLogs:  3 * time.Second,
	logRetry:   time.Second, saveOffset: time.Second,
	reconcile: 30 * time.Second,
	collect:   15 * time.Second, collectMax: 10 * time.Minute,
	strays: 10 * time.Minute,
	renew:  time.Second, rotate: 5 * time.Second,
	firstCheck: fingerprint.DefaultFirstWait,
}

var _ drivers.DriverPlugin = (*Driver)(nil)

// Serve runs the plugin for the agent that started this process, until the
// agent ends it.
func Serve(options Options) {
	// An agent that is killed closes the pipe that the log goes to. The plugin
	// must outlive that: the next agent attaches to it.
	signal.Ignore(syscall.SIGPIPE)
	plugins.Serve(func(logger hclog.Logger) any {
		options.Logger = logger
		d := New(options)
		d.holdLogs = true
		return d
	})
}

// New makes a driver that has not begun to do anything.
func New(options Options) *Driver {
	if options.Logger == nil {
		options.Logger = hclog.NewNullLogger()
	}
	if options.Version == "" {
		options.Version = "0.0.0"
	}
	timing := defaultTiming
	d := &Driver{
		options:  options,
		logger:   options.Logger.Named(Name),
		timing:   &timing,
		events:   new(events),
		store:    newStore(),
		orphaned: make(chan struct{}, 1),
		newProber: func(config probe.Config, proxy probe.Proxy) (prober, error) {
			return probe.New(config, proxy)
		},
		newNomad:    newNomad,
		newRegistry: func(config registry.Config) (registrar, error) { return registry.New(config) },
		newTargets:  func(config registry.TargetConfig) (targetRegistrar, error) { return registry.NewTargets(config) },
	}
	d.ctx, d.cancel = context.WithCancelCause(context.Background())
	return d
}

// Close ends everything that the driver does and waits for it. The tasks go on,
// registered as they are.
func (d *Driver) Close(ctx context.Context) error {
	d.mu.Lock()
	d.closed = true
	d.mu.Unlock()
	d.cancel(errClosing)
	d.wg.Wait()
	for _, h := range d.store.all() {
		h.retire(errClosing)
	}
	d.mu.Lock()
	registrar, settings := d.registrar, d.settings
	d.mu.Unlock()
	var failed []error
	if registrar != nil {
		failed = append(failed, registrar.Close(ctx))
	}
	if settings != nil {
		for _, place := range settings.places {
			if closer, ok := place.Provider.(io.Closer); ok {
				failed = append(failed, closer.Close())
			}
		}
	}
	return errors.Join(failed...)
}

// enter keeps Close waiting until leave is called; it fails when Close was
// called already.
func (d *Driver) enter() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return errClosing
	}
	d.wg.Add(1)
	return nil
}

func (d *Driver) leave() { d.wg.Done() }

// spawn runs f in a goroutine that Close waits for.
func (d *Driver) spawn(f func()) error {
	if err := d.enter(); err != nil {
		return err
	}
	go func() {
		defer d.leave()
		f()
	}()
	return nil
}

// PluginInfo tells the agent what this is.
func (d *Driver) PluginInfo() (*base.PluginInfoResponse, error) {
	return pluginInfo(d.options.Version), nil
}

// ConfigSchema is the schema of the plugin's config.
func (d *Driver) ConfigSchema() (*hclspec.Spec, error) { return configSpec, nil }

// TaskConfigSchema is the schema of a task's config.
func (d *Driver) TaskConfigSchema() (*hclspec.Spec, error) { return taskConfigSpec, nil }

// Capabilities says what the driver can do.
func (d *Driver) Capabilities() (*drivers.Capabilities, error) { return capabilities, nil }

// SetConfig validates and takes the plugin's config, and does nothing else: an
// agent starts the plugin several times at boot for this alone.
func (d *Driver) SetConfig(base *base.Config) error {
	config, err := decodeConfig(base.PluginConfig)
	if err != nil {
		return err
	}
	built, err := config.Build(d.options.Factories, d.logger)
	if err != nil {
		return err
	}
	places := make(map[string]*place, len(built))
	for _, block := range config.Providers {
		places[block.Name] = &place{Provider: built[block.Name], name: block.Name, kind: block.Type}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.settings = &settings{
		config:      config,
		places:      places,
		credentials: newCredentials(config.CredentialsFile, d.logger),
		records:     records{dir: filepath.Join(config.StateDir, "tasks")},
		offsets:     offsets{dir: filepath.Join(config.StateDir, "logs")},
	}
	return nil
}

var errUnconfigured = errors.New(`the plugin has no config: add a plugin "egress" block with a provider to the agent's` +
	` configuration`)

// current are the settings of now.
func (d *Driver) current() (*settings, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.settings == nil {
		return nil, errUnconfigured
	}
	return d.settings, nil
}

// place finds the provider of a task that exists.
func (s *settings) place(name string) (*place, error) {
	if found, ok := s.places[name]; ok {
		return found, nil
	}
	return nil, unknownProvider(name, strings.Join(slices.Sorted(maps.Keys(s.places)), ", "))
}

// TaskEvents streams what there is to tell of the tasks.
func (d *Driver) TaskEvents(ctx context.Context) (<-chan *drivers.TaskEvent, error) {
	return d.events.listen(ctx), nil
}

// InspectTask reports a task's state.
func (d *Driver) InspectTask(id string) (*drivers.TaskStatus, error) {
	h := d.store.task(id)
	if h == nil {
		return nil, drivers.ErrTaskNotFound
	}
	return h.status(), nil
}
