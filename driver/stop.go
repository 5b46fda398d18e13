package driver

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/nomad/plugins/drivers"

	"github.com/egress-proxies/egress/provider"
)

// WaitTask gives the result of a task once it has ended: exactly one, since an
// agent that receives a closed channel instead panics. When the plugin closes
// first, there is none and the channel stays open; the agent learns of that
// from the connection.
func (d *Driver) WaitTask(ctx context.Context, id string) (<-chan *drivers.ExitResult, error) {
	h := d.store.task(id)
	if h == nil {
		return nil, drivers.ErrTaskNotFound
	}
	ch := make(chan *drivers.ExitResult, 1)
	if err := d.spawn(func() { h.wait(ctx, ch) }); err != nil {
		return nil, err
	}
	return ch, nil
}

func (h *handle) wait(ctx context.Context, ch chan<- *drivers.ExitResult) {
	select {
	case <-h.done:
	case <-ctx.Done():
		ch <- &drivers.ExitResult{Err: ctx.Err()}
		close(ch)
		return
	case <-h.ctx.Done():
		if errors.Is(context.Cause(h.ctx), errClosing) {
			return
		}
		<-h.done // observe closes it now
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	ch <- h.result.Copy()
	close(ch)
}

// StopTask takes the proxy out of Consul, lets its clients drain, asks it to
// end and, at the timeout, deletes it. It is nil when there is nothing (any
// more): an error makes Nomad try again for minutes.
func (d *Driver) StopTask(id string, timeout time.Duration, signal string) error {
	h := d.store.task(id)
	if h == nil {
		return d.DestroyTask(id, true)
	}
	if h.ended() {
		return nil
	}
	h.setStopping()
	h.stopProbing()
	h.deregister(h.ctx)
	if h.task.Drain > 0 {
		h.logger.Info("draining", "instance", h.ref().Name, "drain", h.task.Drain)
		h.endsWithin(h.task.Drain)
	}
	why := errStopped
	if !h.ended() {
		why = h.askToStop(signal, timeout)
	}
	if h.ended() {
		return nil
	}
	if cause := context.Cause(h.ctx); errors.Is(cause, errClosing) {
		return cause
	}
	return d.force(h, why)
}

// askToStop asks for an orderly end and waits for it. It says why the instance
// must be deleted, if it goes on.
func (h *handle) askToStop(signal string, timeout time.Duration) error {
	stopper, ok := h.place.Provider.(provider.Stopper)
	if !ok {
		return errStopped
	}
	ctx, cancel := context.WithTimeout(h.ctx, h.timing.get)
	defer cancel()
	if err := stopper.Stop(ctx, h.ref(), signal); err != nil {
		h.logger.Warn("orderly stop was refused, deleting the instance", "instance", h.ref().String(), "error", err)
		return fmt.Errorf("instance %s refused an orderly stop and was deleted: %s", h.ref().Name, oneLine(err))
	}
	h.endsWithin(timeout)
	return fmt.Errorf("instance %s did not end within kill_timeout %v and was deleted", h.ref().Name, timeout)
}

// endsWithin waits for the end of the instance, within a bound.
func (h *handle) endsWithin(timeout time.Duration) {
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case <-h.done:
	case <-timer.C:
	case <-h.ctx.Done():
	}
}

// force deletes an instance that did not end by itself; why is the result.
func (d *Driver) force(h *handle, why error) error {
	ctx, cancel := context.WithTimeout(h.ctx, d.timing.destroy)
	defer cancel()
	h.setForced(why)
	if err := h.place.Delete(ctx, h.ref()); err != nil {
		if s, settingsErr := d.current(); settingsErr == nil {
			d.abandon(s, h.record(), err)
		}
		return fmt.Errorf("instance %s still runs and can't be deleted yet: %s", h.ref(), oneLine(err))
	}
	h.cancel(why)
	// observe closes done, or has done so; a plugin that closes meanwhile ends it without.
	select {
	case <-h.done:
	case <-d.ctx.Done():
	}
	return nil
}

// record is the record of a task that lives.
func (h *handle) record() record {
	return record{
		TaskID: h.cfg.ID, Provider: h.place.name, Ref: h.ref(), Namespace: h.labels.Namespace, Node: h.labels.Node,
	}
}

// DestroyTask removes everything of a task, by its id alone if need be: after a
// recovery that failed, nobody in this process has ever seen it. An id whose
// slot belongs to a later invocation is gone already. What can't be removed
// within a bound is left to the collector, and told.
func (d *Driver) DestroyTask(id string, force bool) error {
	s, err := d.current()
	if err != nil {
		return err
	}
	slot, err := parseTaskID(id)
	if err != nil {
		return err
	}
	if h := d.store.task(id); h != nil && !h.ended() && !force {
		return fmt.Errorf("task %q still runs: stop it first", id)
	}
	ctx, cancel := context.WithTimeout(d.ctx, d.timing.destroy)
	defer cancel()
	ctx, mine := newWork(ctx, slot, id, false)
	defer mine.cancel(nil)
	ok, err := d.store.beginDestroy(ctx, mine)
	if !ok || err != nil {
		return err
	}
	defer d.store.end(mine)
	return d.destroy(ctx, s, mine)
}

func (d *Driver) destroy(ctx context.Context, s *settings, mine *work) error {
	name := provider.Name(s.config.Cluster, mine.slot.alloc, mine.slot.task)
	target := record{TaskID: mine.id, Ref: provider.Ref{Name: name}}
	if found, ok := s.records.read(name); ok {
		target = found
	}
	if h := d.store.task(mine.id); h != nil {
		target = h.record()
		if h.ended() {
			h.drainLogs()
		}
		h.setStopping()
		h.retire(errDestroyed)
		defer d.store.remove(h)
	}
	if err := d.deleteRecorded(ctx, s, target); err != nil {
		d.abandon(s, target, err)
		return fmt.Errorf("instance %s is not deleted yet, trying on in the background: %s", target.Ref, oneLine(err))
	}
	return nil
}

// deleteRecorded deregisters and deletes an instance and forgets it. Without a
// known provider, every one is asked.
func (d *Driver) deleteRecorded(ctx context.Context, s *settings, target record) error {
	d.deregister(ctx, s, target)
	places := make([]*place, 0, len(s.places))
	if target.Provider != "" {
		found, err := s.place(target.Provider)
		if err != nil {
			return provider.Permanentf("%w", err)
		}
		places = append(places, found)
	} else {
		for _, place := range s.places {
			places = append(places, place)
		}
	}
	if err := deleteEverywhere(ctx, places, target.Ref); err != nil {
		return err
	}
	s.offsets.remove(target.Ref.Name)
	return s.records.remove(target.Ref.Name)
}

// deregister takes an instance out of Consul that may not be this process's.
func (d *Driver) deregister(ctx context.Context, s *settings, target record) {
	ctx, cancel := context.WithTimeout(ctx, d.timing.deregister)
	defer cancel()
	if err := d.registry(s, target.Node).Deregister(ctx, target.Ref.Name); err != nil {
		d.logger.Warn("not deregistered yet, going on in the background", "instance", target.Ref.Name, "error", err)
	}
}

// deleteEverywhere asks all places at once, so that one that hangs delays
// nobody.
func deleteEverywhere(ctx context.Context, places []*place, ref provider.Ref) error {
	failures := make(chan error, len(places))
	for _, place := range places {
		go func() {
			if err := place.Delete(ctx, ref); err != nil {
				failures <- fmt.Errorf("provider %q: %w", place.name, err)
				return
			}
			failures <- nil
		}()
	}
	var failed []error
	for range places {
		failed = append(failed, <-failures)
	}
	slices.SortFunc(failed, func(a, b error) int { return strings.Compare(fmt.Sprint(a), fmt.Sprint(b)) })
	return errors.Join(failed...)
}
