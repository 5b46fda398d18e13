package gcp

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"cloud.google.com/go/compute/apiv1/computepb"

	"github.com/egress-proxies/egress/provider"
)

// Create inserts a machine into the first zone that has room, unless there is
// one already.
func (p *Provider) Create(ctx context.Context, spec provider.Spec) (provider.Instance, error) {
	if err := provider.CheckName(spec.Name); err != nil {
		return provider.Instance{}, err
	}
	if err := p.Validate(spec); err != nil {
		return provider.Instance{}, err
	}
	unlock, err := p.names.Lock(ctx, spec.Name)
	if err != nil {
		return provider.Instance{}, err
	}
	defer unlock()
	zones := p.zones(spec)
	existing, adopted, err := p.existing(ctx, spec.Name, zones)
	if err != nil || adopted {
		return existing, err
	}
	var refusals []string
	full := map[string]bool{} // regions without quota
	for i, zone := range zones {
		if full[regionOf(zone)] {
			continue
		}
		var instance provider.Instance
		if instance, err = p.launch(ctx, spec, zone); err == nil {
			return instance, nil
		}
		refusals = append(refusals, err.Error())
		reach := scopeOf(err)
		if reach == everywhere || ctx.Err() != nil {
			return provider.Instance{}, err
		}
		full[regionOf(zone)] = reach == oneRegion
		if i+1 < len(zones) {
			provider.Report(ctx, "no room in zone %s, trying the next: %v", zone, err)
		}
	}
	if len(refusals) == 1 {
		return provider.Instance{}, err
	}
	return provider.Instance{}, provider.Quotaf("no zone has room: %s", strings.Join(refusals, "; "))
}

// existing adopts a machine of the name that lives, in whatever zone it is, and
// removes those that have ended.
func (p *Provider) existing(ctx context.Context, name string, zones []string) (provider.Instance, bool, error) {
	found, silent, err := p.find(ctx, name)
	if err != nil {
		return provider.Instance{}, false, err
	}
	for _, machine := range found {
		if err := p.owned(machine); err != nil {
			return provider.Instance{}, false, err
		}
		if instance := p.describe(ctx, machine); alive(instance) {
			return instance, true, nil
		}
	}
	for _, machine := range found {
		provider.Report(ctx, "removing an earlier machine that has ended")
		if err := p.removeIn(ctx, zoneOf(machine.GetZone()), name); err != nil {
			return provider.Instance{}, false, err
		}
	}
	silent = slices.DeleteFunc(silent, func(zone string) bool { return !slices.Contains(zones, zone) })
	if len(silent) > 0 {
		return provider.Instance{}, false, unreachable(silent)
	}
	return provider.Instance{}, false, nil
}

func alive(instance provider.Instance) bool {
	return instance.State == provider.Provisioning || instance.State == provider.Running || instance.State == provider.Unknown
}

// maxLaunches bounds how often one launch begins anew: what holds the name is
// removed, or Google answers with a request of the last hour.
const maxLaunches = 8

// errAgain says that the obstacle is gone.
var errAgain = errors.New("again")

// launch inserts a machine into one zone and follows the operation, since most
// refusals (quota, stockout) come with its end.
func (p *Provider) launch(ctx context.Context, spec provider.Spec, zone string) (provider.Instance, error) {
	machine, err := p.machine(spec, zone)
	if err != nil {
		return provider.Instance{}, err
	}
	provider.Report(ctx, "making a machine in zone %s", zone)
	for range maxLaunches {
		op, err := p.insert(ctx, machine, zone)
		if err == nil {
			var instance provider.Instance
			if instance, err = p.follow(ctx, op, zone, spec.Name); err == nil {
				return instance, nil
			}
		} else if status(err) == http.StatusConflict {
			var instance provider.Instance
			if instance, err = p.conflict(ctx, zone, spec.Name, err); err == nil {
				return instance, nil
			}
		}
		if !errors.Is(err, errAgain) {
			return provider.Instance{}, p.undo(ctx, zone, spec.Name, err)
		}
	}
	return provider.Instance{}, provider.Transientf("make machine %s/%s: the name is taken again and again", zone, spec.Name)
}

func (p *Provider) insert(ctx context.Context, machine *computepb.Instance, zone string) (*computepb.Operation, error) {
	bounded, cancel, opened, err := p.call(ctx)
	if err != nil {
		return nil, err
	}
	defer cancel()
	id := p.attempts.requestID(p.settings.Project+"/"+zone, machine.GetName())
	op, err := opened.instances.Insert(bounded, &computepb.InsertInstanceRequest{
		Project: p.settings.Project, Zone: zone, InstanceResource: machine, RequestId: &id,
	}, p.retry())
	if err != nil {
		err = translate(fmt.Sprintf("make machine %s/%s", zone, machine.GetName()), err)
		if provider.Classify(err) == provider.ErrNotFound { // an image, a disk type: not the machine
			err = provider.Permanentf("%w", err)
		}
		return nil, err
	}
	return op.Proto(), nil
}

// follow waits for the insert and looks at what it made.
func (p *Provider) follow(ctx context.Context, op *computepb.Operation, zone, name string) (provider.Instance, error) {
	if err := p.wait(ctx, fmt.Sprintf("make machine %s/%s", zone, name), zone, op); err != nil {
		p.attempts.next(name)
		return provider.Instance{}, err
	}
	made, err := p.get(ctx, zone, name)
	if provider.Classify(err) == provider.ErrNotFound {
		// The operation of an earlier machine of the name, which is gone.
		p.attempts.next(name)
		return provider.Instance{}, errAgain
	}
	if err != nil {
		return provider.Instance{}, err
	}
	return p.describe(ctx, made), nil
}

// conflict is the answer that something of the name exists: a machine of ours
// that lives is the one that was wanted.
func (p *Provider) conflict(ctx context.Context, zone, name string, cause error) (provider.Instance, error) {
	found, err := p.get(ctx, zone, name)
	switch {
	case provider.Classify(err) == provider.ErrNotFound && strings.Contains(cause.Error(), "/disks/"):
		if err := p.removeDisk(ctx, zone, name); err != nil {
			return provider.Instance{}, err
		}
		return provider.Instance{}, errAgain
	case provider.Classify(err) == provider.ErrNotFound:
		return provider.Instance{}, errAgain // it has just gone
	case err != nil:
		return provider.Instance{}, err
	}
	if err := p.owned(found); err != nil {
		return provider.Instance{}, err
	}
	if instance := p.describe(ctx, found); alive(instance) {
		return instance, nil
	}
	if err := p.removeIn(ctx, zone, name); err != nil {
		return provider.Instance{}, err
	}
	return provider.Instance{}, errAgain
}

// undo removes what a failed launch may have made, also when the caller has
// given up. A plain refusal has made nothing.
func (p *Provider) undo(ctx context.Context, zone, name string, cause error) error {
	if code := status(cause); code >= 400 && code < 500 && code != http.StatusRequestTimeout {
		return cause
	}
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), p.timing.cleanup)
	defer cancel()
	if err := p.removeIn(bounded, zone, name); err != nil {
		p.env.Logger.Warn("what a failed start made is left to garbage collection", "machine", zone+"/"+name, "error", err)
	}
	return cause
}
