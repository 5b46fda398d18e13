package gcp

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"cloud.google.com/go/compute/apiv1/computepb"
	"google.golang.org/protobuf/proto"

	"github.com/egress-proxies/egress/provider"
)

// Delete removes the machine and its disk, and waits until they are gone.
func (p *Provider) Delete(ctx context.Context, ref provider.Ref) error {
	if err := provider.CheckName(ref.Name); err != nil {
		return err
	}
	unlock, err := p.names.Lock(ctx, ref.Name)
	if err != nil {
		return err
	}
	defer unlock()
	if ref.Zone != "" {
		return p.removeIn(ctx, ref.Zone, ref.Name)
	}
	machines, silent, err := p.find(ctx, ref.Name)
	if err != nil {
		return err
	}
	disks, more, err := p.listDisks(ctx, "name="+ref.Name)
	if err != nil {
		return err
	}
	zones := map[string]bool{}
	for _, machine := range machines {
		zones[zoneOf(machine.GetZone())] = true
	}
	for _, disk := range disks {
		zones[zoneOf(disk.GetZone())] = true
	}
	var problems []error
	for zone := range zones {
		problems = append(problems, p.removeIn(ctx, zone, ref.Name))
	}
	if silent = addSilent(silent, more...); len(silent) > 0 {
		problems = append(problems, unreachable(silent))
	}
	return errors.Join(problems...)
}

// removeIn removes what one zone has of a name.
func (p *Provider) removeIn(ctx context.Context, zone, name string) error {
	machine, err := p.get(ctx, zone, name)
	if provider.Classify(err) == provider.ErrNotFound {
		return p.removeDisk(ctx, zone, name)
	}
	if err != nil {
		return err
	}
	if err := p.owned(machine); err != nil {
		return err
	}
	id := machine.GetId()
	p.stops.note(id)
	defer p.seen.forget(name)
	doing := fmt.Sprintf("delete machine %s/%s", zone, name)
	op, err := p.deleteMachine(ctx, zone, name, requestID(zone, name, "delete", strconv.FormatUint(id, 10)))
	switch err = translate(doing, err); {
	case provider.Classify(err) == provider.ErrNotFound:
	case err != nil:
		return err
	default:
		if err := p.wait(ctx, doing, zone, op); err != nil {
			return err
		}
	}
	p.attempts.next(name)
	for _, disk := range machine.GetDisks() {
		if disk.GetBoot() && !disk.GetAutoDelete() { // somebody changed it
			return p.removeDisk(ctx, zone, name)
		}
	}
	return nil
}

func (p *Provider) deleteMachine(ctx context.Context, zone, name, id string) (*computepb.Operation, error) {
	bounded, cancel, opened, err := p.call(ctx)
	if err != nil {
		return nil, err
	}
	defer cancel()
	// At once: an orderly shutdown is Stop's business.
	op, err := opened.instances.Delete(bounded, &computepb.DeleteInstanceRequest{
		Project: p.settings.Project, Zone: zone, Instance: name, RequestId: &id, NoGracefulShutdown: proto.Bool(true),
	}, p.retry())
	if err != nil {
		return nil, err
	}
	return op.Proto(), nil
}

// removeDisk removes a disk that has lost its machine.
func (p *Provider) removeDisk(ctx context.Context, zone, name string) error {
	bounded, cancel, opened, err := p.call(ctx)
	if err != nil {
		return err
	}
	defer cancel()
	doing := fmt.Sprintf("delete disk %s/%s", zone, name)
	disk, err := opened.disks.Get(bounded, &computepb.GetDiskRequest{Project: p.settings.Project, Zone: zone, Disk: name}, p.retry())
	if err = translate(doing, err); err != nil {
		if provider.Classify(err) == provider.ErrNotFound {
			return nil
		}
		return err
	}
	if !p.ours(disk.GetLabels(), disk.GetDescription()) {
		return provider.Permanentf("the disk %s in zone %s is not one of cluster %q: it is left alone; rename or remove it by hand", name, zone, p.env.Cluster)
	}
	id := requestID(zone, name, "delete-disk", strconv.FormatUint(disk.GetId(), 10))
	op, err := opened.disks.Delete(bounded, &computepb.DeleteDiskRequest{Project: p.settings.Project, Zone: zone, Disk: name, RequestId: &id}, p.retry())
	if err = translate(doing, err); err != nil {
		if provider.Classify(err) == provider.ErrNotFound {
			return nil
		}
		return err
	}
	return p.wait(ctx, doing, zone, op.Proto())
}

// wait follows an operation to its end. Google holds the call until then, or
// for about two minutes: one call does for most operations.
func (p *Provider) wait(ctx context.Context, doing, zone string, op *computepb.Operation) error {
	ctx, cancel := context.WithTimeout(ctx, p.timing.operation)
	defer cancel()
	opened, err := p.client.open()
	if err != nil {
		return err
	}
	for op.GetStatus() != computepb.Operation_DONE {
		next, err := opened.operations.Wait(ctx, &computepb.WaitZoneOperationRequest{
			Project: p.settings.Project, Zone: zone, Operation: op.GetName(),
		}, p.retry())
		if err != nil {
			err = translate(doing, err)
			if provider.Classify(err) == provider.ErrNotFound {
				return provider.Transientf("%w", err) // the operation, not the machine
			}
			return err
		}
		if op = next; op.GetStatus() == computepb.Operation_DONE {
			break
		}
		if err := pause(ctx, p.timing.again); err != nil {
			return provider.Transientf("%s: Google has not finished: %w", doing, err)
		}
	}
	return operationError(doing, op)
}

// Stop presses the power button and does not wait for the guest.
func (p *Provider) Stop(ctx context.Context, ref provider.Ref, _ string) error {
	machine, err := p.locate(ctx, ref)
	if provider.Classify(err) == provider.ErrNotFound {
		return nil
	}
	if err != nil {
		return err
	}
	switch machine.GetStatus() {
	case "TERMINATED", "STOPPED", "STOPPING", "PENDING_STOP", "SUSPENDED":
		return nil
	}
	bounded, cancel, opened, err := p.call(ctx)
	if err != nil {
		return err
	}
	defer cancel()
	zone := zoneOf(machine.GetZone())
	id := requestID(zone, ref.Name, "stop", strconv.FormatUint(machine.GetId(), 10))
	p.stops.note(machine.GetId())
	_, err = opened.instances.Stop(bounded, &computepb.StopInstanceRequest{
		Project: p.settings.Project, Zone: zone, Instance: ref.Name, RequestId: &id,
	}, p.retry())
	if err = translate("stop machine "+ref.String(), err); provider.Classify(err) == provider.ErrNotFound {
		return nil
	}
	return err
}

// locate finds a machine of ours with or without its zone.
func (p *Provider) locate(ctx context.Context, ref provider.Ref) (*computepb.Instance, error) {
	if err := provider.CheckName(ref.Name); err != nil {
		return nil, err
	}
	if ref.Zone != "" {
		machine, err := p.get(ctx, ref.Zone, ref.Name)
		if err != nil {
			return nil, err
		}
		return machine, p.owned(machine)
	}
	found, silent, err := p.find(ctx, ref.Name)
	switch {
	case err != nil:
		return nil, err
	case len(found) > 0:
		return found[0], p.owned(found[0])
	case len(silent) > 0:
		return nil, unreachable(silent)
	default:
		return nil, provider.NotFoundf("project %s has no machine %s in any zone", p.settings.Project, ref.Name)
	}
}
