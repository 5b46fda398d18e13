package driver

import (
	"context"
	"errors"
	"fmt"

	"github.com/hashicorp/nomad/plugins/drivers"

	"github.com/egress-proxies/egress/driver/probe"
	"github.com/egress-proxies/egress/provider"
)

// RecoverTask goes on with a task that an earlier process started. It asks
// nobody: the state of the instance is found out in the background, and one that
// is gone ends the task. It never starts an instance. On an error, Nomad
// destroys the task by its id and starts it anew.
func (d *Driver) RecoverTask(taskHandle *drivers.TaskHandle) error {
	if taskHandle == nil || taskHandle.Config == nil {
		return errors.New("recover a task: the handle is empty")
	}
	cfg := taskHandle.Config
	if d.store.task(cfg.ID) != nil {
		return nil
	}
	s, err := d.current()
	if err != nil {
		return err
	}
	if err := context.Cause(d.ctx); err != nil {
		return err
	}
	slot, err := parseTaskID(cfg.ID)
	if err != nil {
		return err
	}
	state, err := decodeState(taskHandle)
	if err != nil {
		return fmt.Errorf("recover task %q: %w", cfg.ID, err)
	}
	place, err := s.place(state.Provider)
	if err != nil {
		return fmt.Errorf("recover task %q: %w", cfg.ID, err)
	}
	if cfg.NodeID == "" {
		cfg.NodeID = state.Labels.Node
	}
	d.begin()
	h := d.newHandle(s, cfg, slot, place, state.Task)
	h.listener = listener{label: state.PortLabel, port: state.Port}
	h.labels, h.startedAt = state.Labels, state.StartedAt
	h.instance = provider.Instance{
		Ref: state.Ref, ID: state.InstanceID, State: provider.Unknown,
		Address: state.Address, Addresses: []string{state.Address}, Port: state.Port,
	}
	if !d.store.add(h) {
		h.cancel(errClosing)
		return nil
	}
	if _, recorded := s.records.read(state.Ref.Name); !recorded {
		if err := s.records.write(h.record()); err != nil {
			d.logger.Warn("no record of a recovered task", "error", err)
		}
	}
	h.run()
	h.wg.Go(func() { h.publish(probe.Verdict{}) })
	d.logger.Info("task recovered", "task_id", cfg.ID, "instance", state.Ref.String(), "address", state.Address)
	return nil
}
