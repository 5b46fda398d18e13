package gcp

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"cloud.google.com/go/compute/apiv1/computepb"
	"google.golang.org/api/iterator"
	"google.golang.org/protobuf/proto"

	"github.com/egress-proxies/egress/provider"
)

// get asks for one machine.
func (p *Provider) get(ctx context.Context, zone, name string) (*computepb.Instance, error) {
	if err := checkZone(zone); err != nil {
		return nil, provider.Permanentf("%w", err)
	}
	bounded, cancel, opened, err := p.call(ctx)
	if err != nil {
		return nil, err
	}
	defer cancel()
	machine, err := opened.instances.Get(bounded, &computepb.GetInstanceRequest{Project: p.settings.Project, Zone: zone, Instance: name}, p.retry())
	return machine, translate(fmt.Sprintf("get machine %s/%s", zone, name), err)
}

// find looks for a name in all zones. silent are the zones that Google could
// not list.
func (p *Provider) find(ctx context.Context, name string) (found []*computepb.Instance, silent []string, err error) {
	return p.list(ctx, "name="+name)
}

// managed is the filter for all of this cluster.
func (p *Provider) managed() string {
	return fmt.Sprintf("labels.%s=true AND labels.%s=%s", provider.LabelManaged, provider.LabelCluster, labelValue(p.env.Cluster))
}

// pageSize is the largest that Google gives.
const pageSize = 500

// list is one aggregated list. With partial success Google answers for the
// zones that work and names the others, where it would else fail as a whole.
func (p *Provider) list(ctx context.Context, filter string) (found []*computepb.Instance, silent []string, err error) {
	ctx, cancel, opened, err := p.call(ctx)
	if err != nil {
		return nil, nil, err
	}
	defer cancel()
	scopes := opened.instances.AggregatedList(ctx, &computepb.AggregatedListInstancesRequest{
		Project: p.settings.Project, Filter: &filter, MaxResults: proto.Uint32(pageSize),
	}, p.retry())
	for {
		scope, err := scopes.Next()
		if page, ok := scopes.Response.(*computepb.InstanceAggregatedList); ok {
			silent = addSilent(silent, page.GetUnreachables()...)
		}
		if errors.Is(err, iterator.Done) {
			return found, silent, nil
		}
		if err != nil {
			return nil, nil, translate("list machines", err)
		}
		if unreached(scope.Value.GetWarning()) {
			silent = addSilent(silent, scope.Key)
		}
		found = append(found, scope.Value.GetInstances()...)
	}
}

// listDisks is the same for disks.
func (p *Provider) listDisks(ctx context.Context, filter string) (found []*computepb.Disk, silent []string, err error) {
	ctx, cancel, opened, err := p.call(ctx)
	if err != nil {
		return nil, nil, err
	}
	defer cancel()
	scopes := opened.disks.AggregatedList(ctx, &computepb.AggregatedListDisksRequest{
		Project: p.settings.Project, Filter: &filter, MaxResults: proto.Uint32(pageSize),
	}, p.retry())
	for {
		scope, err := scopes.Next()
		if page, ok := scopes.Response.(*computepb.DiskAggregatedList); ok {
			silent = addSilent(silent, page.GetUnreachables()...)
		}
		if errors.Is(err, iterator.Done) {
			return found, silent, nil
		}
		if err != nil {
			return nil, nil, translate("list disks", err)
		}
		if unreached(scope.Value.GetWarning()) {
			silent = addSilent(silent, scope.Key)
		}
		found = append(found, scope.Value.GetDisks()...)
	}
}

// unreached tells the warning of a zone that could not be listed from the one
// that says that nothing is there (NO_RESULTS_ON_PAGE).
func unreached(warning *computepb.Warning) bool {
	return warning.GetCode() == "UNREACHABLE" || warning.GetCode() == "PARTIAL_SUCCESS"
}

func addSilent(silent []string, scopes ...string) []string {
	for _, scope := range scopes {
		if name := strings.TrimPrefix(scope, "zones/"); !slices.Contains(silent, name) {
			silent = append(silent, name)
		}
	}
	return silent
}

// List reports the machines of the cluster in the whole project, also in zones
// that are no longer configured, and the disks that have lost theirs.
func (p *Provider) List(ctx context.Context) ([]provider.Instance, error) {
	machines, silent, err := p.list(ctx, p.managed())
	if err != nil {
		return nil, err
	}
	disks, more, err := p.listDisks(ctx, p.managed())
	if err != nil {
		return nil, err
	}
	if silent = addSilent(silent, more...); len(silent) > 0 {
		return nil, unreachable(silent)
	}
	var all []provider.Instance
	known := make(map[string]bool)
	for _, machine := range machines {
		if !p.ours(machine.GetLabels(), machine.GetDescription()) {
			continue
		}
		instance := p.describe(ctx, machine)
		known[instance.Ref.String()] = true
		all = append(all, instance)
	}
	for _, disk := range disks {
		ref := provider.Ref{Name: disk.GetName(), Zone: zoneOf(disk.GetZone())}
		if known[ref.String()] || len(disk.GetUsers()) > 0 || !p.ours(disk.GetLabels(), disk.GetDescription()) {
			continue
		}
		s, _ := readStamp(disk.GetDescription())
		all = append(all, provider.Instance{
			Ref: ref, State: provider.Leftover, Reason: "a disk without its machine", Labels: s.Labels,
			CreatedAt: s.Labels.CreatedAt, Pieces: []string{"disk " + ref.String()},
		})
	}
	return all, nil
}
