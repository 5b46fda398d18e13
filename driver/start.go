package driver

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/nomad/plugins/drivers"

	"github.com/egress-proxies/egress/driver/loghold"
	"github.com/egress-proxies/egress/driver/probe"
	"github.com/egress-proxies/egress/provider"
)

// StartTask launches the instance of a task and returns when its address is
// final, its first probe has passed and it is registered; or, after
// start_timeout at the latest, an error, with nothing left behind. An instance
// that the same invocation made already is adopted, one of another invocation
// is deleted first.
func (d *Driver) StartTask(cfg *drivers.TaskConfig) (*drivers.TaskHandle, *drivers.DriverNetwork, error) {
	h, err := d.startTask(cfg)
	if err != nil {
		d.logger.Warn("task was not started", "task_id", cfg.ID, "error", err)
		return nil, nil, startError(err)
	}
	handle, err := h.state().encode(cfg)
	if err != nil {
		return nil, nil, startError(err)
	}
	return handle, h.network(), nil
}

func (d *Driver) startTask(cfg *drivers.TaskConfig) (*handle, error) {
	if err := d.enter(); err != nil {
		return nil, err
	}
	defer d.leave()
	s, err := d.current()
	if err != nil {
		return nil, provider.Permanentf("%w", err)
	}
	slot, err := parseTaskID(cfg.ID)
	if err != nil {
		return nil, provider.Permanentf("%w", err)
	}
	task, err := s.config.decodeTask(cfg, s.places)
	if err != nil {
		return nil, provider.Permanentf("task config: %w", err)
	}
	d.begin()
	ctx, cancel := context.WithTimeoutCause(d.ctx, task.StartTimeout, errStartTimeout)
	defer cancel()
	ctx, mine := newWork(ctx, slot, cfg.ID, true)
	defer mine.cancel(nil)
	running, joined, err := d.store.begin(ctx, mine)
	switch {
	case err != nil:
		return nil, interruptedStart(ctx, task.StartTimeout, "waiting for an earlier start of the task to end", err)
	case running != nil:
		return running, nil
	case joined != nil:
		if err := joined.wait(ctx); err != nil {
			return nil, interruptedStart(ctx, task.StartTimeout, "starting", err)
		}
		return joined.started, joined.err
	}
	mine.started, mine.err = d.start(ctx, s, slot, cfg, task)
	d.store.end(mine)
	return mine.started, mine.err
}

// launch is one start under way.
type launch struct {
	d        *Driver
	s        *settings
	slot     slot
	cfg      *drivers.TaskConfig
	task     taskConfig
	place    *place
	spec     provider.Spec
	listener listener
	said     *progress

	doing  string
	record record  // what to clean up; valid when recorded
	made   bool    // record was written
	handle *handle // nil until Create returned
}

// start does the work of StartTask and cleans up after itself.
func (d *Driver) start(ctx context.Context, s *settings, slot slot, cfg *drivers.TaskConfig, task taskConfig) (*handle, error) {
	l := &launch{d: d, s: s, slot: slot, cfg: cfg, task: task, place: s.places[task.Provider], doing: "preparing"}
	l.said = &progress{emit: func(message string) { d.events.emit(cfg, message) }, now: time.Now}
	verdict, err := l.run(ctx)
	if err == nil {
		h := l.handle
		instance, _ := h.snapshot()
		h.register(instance.Address, h.state().Port, verdict)
		h.wg.Go(func() { h.publish(verdict) })
		return h, nil
	}
	err = interruptedStart(ctx, task.StartTimeout, l.doing, err)
	l.cleanUp(ctx)
	return nil, err
}

func (l *launch) run(ctx context.Context) (probe.Verdict, error) {
	var none probe.Verdict
	if err := l.prepare(); err != nil {
		return none, err
	}
	l.doing = "removing an earlier instance"
	if err := l.redo(ctx); err != nil {
		return none, err
	}
	if err := l.create(ctx); err != nil {
		return none, err
	}
	l.doing = "waiting for an address"
	if err := l.handle.awaitAddress(ctx); err != nil {
		return none, err
	}
	l.doing = "waiting for the probe"
	instance, _ := l.handle.snapshot()
	if l.task.Probe.Enabled {
		l.said.say(fmt.Sprintf("Proxy is at %s, probing it", instance.Address))
	}
	verdict, err := l.handle.awaitProbe(ctx, l.said)
	if err != nil {
		return none, err
	}
	return verdict, ctx.Err()
}

// prepare says what will be launched, or what is wrong with the task.
func (l *launch) prepare() error {
	auth, err := l.s.credentials.lookup(l.task.Auth)
	if err != nil {
		return err
	}
	l.spec, l.listener, err = newSpec(l.s.config.Cluster, l.cfg, l.task, l.place, auth)
	if err != nil {
		return err
	}
	if validator, ok := l.place.Provider.(provider.Validator); ok {
		return validator.Validate(l.spec)
	}
	return nil
}

// redo removes what another invocation of the task left: Nomad knows nothing of
// it any more, and it may have been made from another config.
func (l *launch) redo(ctx context.Context) error {
	found, ok := l.s.records.read(l.spec.Name)
	if previous := l.d.store.resident(l.slot); previous != nil {
		previous.setStopping()
		previous.retire(errSuperseded)
		l.d.store.remove(previous)
		found, ok = previous.record(), true
	}
	if !ok || found.TaskID == l.cfg.ID && !found.Orphan {
		return nil
	}
	l.d.logger.Info("removing the instance of an earlier start", "instance", found.Ref.String(), "task_id", found.TaskID)
	if err := l.d.deleteRecorded(ctx, l.s, found); err != nil {
		return fmt.Errorf("remove the instance of an earlier start: %w", err)
	}
	l.s.offsets.remove(l.spec.Name)
	return nil
}

// create makes the instance, with its record around it.
func (l *launch) create(ctx context.Context) error {
	l.doing = "launching"
	l.record = record{
		TaskID: l.cfg.ID, Provider: l.place.name, Namespace: l.cfg.Namespace, Node: l.cfg.NodeID,
		Ref: provider.Ref{Name: l.spec.Name, Zone: l.spec.Zone},
	}
	if err := l.s.records.write(l.record); err != nil {
		return err
	}
	l.made = true
	l.said.say(fmt.Sprintf("Launching proxy %s with provider %s", l.spec.Name, l.place.name))
	telling := provider.WithNotices(provider.WithProgress(ctx, l.said.report), l.said.notice)
	instance, err := l.place.Create(telling, l.spec)
	if err != nil {
		return err
	}
	l.record.Ref = provider.Ref{Name: l.spec.Name, Zone: instance.Zone}
	l.handle = l.d.newHandle(l.s, l.cfg, l.slot, l.place, l.task)
	l.handle.listener, l.handle.labels, l.handle.startedAt = l.listener, l.spec.Labels, time.Now()
	l.handle.given = &l.spec.Auth
	l.handle.instance = provider.Instance{Ref: l.record.Ref}
	l.handle.update(instance)
	l.handle.run()
	// Without the zone, a delete would have to look everywhere.
	return l.s.records.write(l.record)
}

// cleanUp removes everything that a failed start made. What can't be removed
// within a bound is left to the collector. A plugin that closes leaves it to
// the next one, which adopts or redoes it.
func (l *launch) cleanUp(ctx context.Context) {
	if errors.Is(context.Cause(ctx), errClosing) {
		if l.handle != nil {
			l.handle.retire(errClosing)
		}
		return
	}
	if l.handle != nil {
		l.handle.setStopping()
		l.handle.retire(errDestroyed)
	}
	if !l.made {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), l.d.timing.cleanup)
	defer cancel()
	if err := l.d.deleteRecorded(ctx, l.s, l.record); err != nil {
		l.d.abandon(l.s, l.record, err)
	}
}

// newHandle makes the handle of a task; the caller fills in what it knows.
func (d *Driver) newHandle(s *settings, cfg *drivers.TaskConfig, slot slot, place *place, task taskConfig) *handle {
	h := &handle{
		cfg:         cfg,
		slot:        slot,
		place:       place,
		task:        task,
		timing:      d.timing,
		logger:      d.logger.With("alloc_id", cfg.AllocID, "task", cfg.Name),
		events:      d.events,
		registrar:   d.registry(s, cfg.NodeID),
		credentials: s.credentials,
		newProber:   d.newProber,
		offsets:     s.offsets,
		done:        make(chan struct{}),
		logsDone:    make(chan struct{}),
		changed:     make(chan struct{}),
	}
	if d.holdLogs {
		h.holder = &loghold.Client{Dir: s.offsets.dir}
	}
	h.ctx, h.cancel = context.WithCancelCause(d.ctx)
	h.probing, h.stopProbing = context.WithCancel(h.ctx)
	h.logs, h.stopLogs = context.WithCancel(h.ctx)
	return h
}
