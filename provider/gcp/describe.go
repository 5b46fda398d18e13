package gcp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"strconv"
	"time"

	"cloud.google.com/go/compute/apiv1/computepb"
	"google.golang.org/api/iterator"

	"github.com/egress-proxies/egress/provider"
)

// stamp is the description of a machine and of its disk, in JSON.
type stamp struct {
	Labels provider.Labels `json:"egress"`
	Port   int             `json:"port,omitempty"`
}

// maxDescription is Compute Engine's bound.
const maxDescription = 2048

func (s stamp) text() (string, error) {
	content, err := json.Marshal(s)
	if err != nil {
		return "", provider.Permanentf("labels: %w", err)
	}
	if len(content) > maxDescription {
		return "", provider.Permanentf("labels: %d bytes with the names of job, group and task: want at most %d", len(content), maxDescription)
	}
	return string(content), nil
}

// readStamp reads a description; ok is false when somebody has changed it.
func readStamp(text string) (s stamp, ok bool) {
	err := json.Unmarshal([]byte(text), &s)
	return s, err == nil && s.Labels.Cluster != ""
}

// ours says whether something carries the labels of this provider's cluster.
func (p *Provider) ours(labels map[string]string, description string) bool {
	if labels[provider.LabelManaged] != "true" || labels[provider.LabelCluster] != labelValue(p.env.Cluster) {
		return false
	}
	s, ok := readStamp(description)
	return !ok || s.Labels.Cluster == p.env.Cluster
}

// owned refuses a machine that isn't ours.
func (p *Provider) owned(machine *computepb.Instance) error {
	if p.ours(machine.GetLabels(), machine.GetDescription()) {
		return nil
	}
	return provider.Permanentf("the machine %s in zone %s is not one of cluster %q: it is left alone; rename or remove it by hand",
		machine.GetName(), zoneOf(machine.GetZone()), p.env.Cluster)
}

// zoneOf is the name of a zone or another thing that is given as a URL.
func zoneOf(url string) string { return path.Base(url) }

// describe translates a machine, and notes what was seen.
func (p *Provider) describe(ctx context.Context, machine *computepb.Instance) provider.Instance {
	s, ok := readStamp(machine.GetDescription())
	if !ok {
		s.Labels, _ = provider.LabelsFromMap(machine.GetLabels())
		s.Labels.Cluster = p.env.Cluster
	}
	instance := provider.Instance{
		Ref:       provider.Ref{Name: machine.GetName(), Zone: zoneOf(machine.GetZone())},
		ID:        strconv.FormatUint(machine.GetId(), 10),
		Labels:    s.Labels,
		Port:      s.Port,
		CreatedAt: s.Labels.CreatedAt,
	}
	if created, err := time.Parse(time.RFC3339, machine.GetCreationTimestamp()); err == nil && instance.CreatedAt.IsZero() {
		instance.CreatedAt = created
	}
	instance.State, instance.Reason = p.state(ctx, machine)
	if instance.State == provider.Provisioning || instance.State == provider.Running {
		instance.Addresses = addresses(machine, p.settings.ClientAddress)
		instance.State = provider.Provisioning
		if len(instance.Addresses) > 0 && machine.GetStatus() == "RUNNING" {
			instance.State, instance.Address = provider.Running, instance.Addresses[0]
		}
	}
	p.seen.note(instance)
	return instance
}

// state maps each status (the reference of Compute Engine, "Instance life
// cycle"). One that isn't known is unknown, never an end.
func (p *Provider) state(ctx context.Context, machine *computepb.Instance) (provider.State, string) {
	status := machine.GetStatus()
	switch status {
	case "PENDING", "PROVISIONING", "STAGING":
		return provider.Provisioning, ""
	case "RUNNING":
		return provider.Running, ""
	case "STOPPING", "PENDING_STOP", "SUSPENDING", "DEPROVISIONING":
		if p.stops.asked(machine.GetId()) {
			return provider.Stopping, "it shuts down as asked"
		}
		return provider.Stopped, p.ending(ctx, machine)
	case "TERMINATED", "STOPPED", "SUSPENDED":
		return provider.Stopped, p.ending(ctx, machine)
	case "REPAIRING":
		return provider.Unknown, "Google repairs it: its host failed"
	default:
		return provider.Unknown, fmt.Sprintf("its status is %q, which this version does not know", status)
	}
}

// ending says why a machine ends or has ended.
func (p *Provider) ending(ctx context.Context, machine *computepb.Instance) string {
	if p.stops.asked(machine.GetId()) {
		return "it was shut down as asked"
	}
	if last, ok := p.seen.ended(machine.GetName(), machine.GetId()); ok {
		return last // asked for once
	}
	if why := p.operationOn(ctx, zoneOf(machine.GetZone()), machine.GetId()); why != "" {
		return why
	}
	if message := machine.GetStatusMessage(); message != "" {
		return message
	}
	if status := machine.GetStatus(); status == "SUSPENDING" || status == "SUSPENDED" {
		return "somebody suspended it"
	}
	return "it was shut down: by its guest, or by somebody with access to the project"
}

// operations that end a machine, by what Google's log calls them.
var endings = map[string]string{
	"compute.instances.preempted":                  "preempted: Google took the spot machine back",
	"compute.instances.hostError":                  "the host failed",
	"compute.instances.terminateOnHostMaintenance": "Google stopped it for maintenance of the host",
	"compute.instances.guestTerminate":             "its guest shut it down",
	"compute.instances.automaticRestart":           "",
	"stop":                                         "somebody stopped it",
	"suspend":                                      "somebody suspended it",
	"delete":                                       "somebody deleted it",
}

// operationOn asks what was done to a machine; empty when nothing that explains
// its end is known, or Google doesn't answer.
func (p *Provider) operationOn(ctx context.Context, zone string, id uint64) string {
	ctx, cancel, opened, err := p.call(ctx)
	if err != nil {
		return ""
	}
	defer cancel()
	filter := fmt.Sprintf("targetId=%d", id)
	operations := opened.operations.List(ctx, &computepb.ListZoneOperationsRequest{
		Project: p.settings.Project, Zone: zone, Filter: &filter,
	}, p.retry())
	why, latest := "", ""
	for {
		op, err := operations.Next()
		if err != nil {
			if !errors.Is(err, iterator.Done) {
				p.env.Logger.Debug("why a machine ended is unknown", "id", id, "error", translate("list operations", err))
			}
			return why
		}
		if meaning := endings[op.GetOperationType()]; meaning != "" && op.GetInsertTime() >= latest {
			why, latest = meaning, op.GetInsertTime()
			if user := op.GetUser(); user != "" && op.GetOperationType() != "compute.instances.preempted" && user != "system" {
				why += " (" + user + ")"
			}
		}
	}
}

// addresses are those that clients use, IPv4 first.
func addresses(machine *computepb.Instance, which string) []string {
	var v4, v6 []string
	add := func(list *[]string, address string) {
		if address != "" {
			*list = append(*list, address)
		}
	}
	for _, nic := range machine.GetNetworkInterfaces() {
		if which == addressInternal {
			add(&v4, nic.GetNetworkIP())
			add(&v6, nic.GetIpv6Address())
			continue
		}
		for _, access := range nic.GetAccessConfigs() {
			add(&v4, access.GetNatIP())
		}
		for _, access := range nic.GetIpv6AccessConfigs() {
			add(&v6, access.GetExternalIpv6())
		}
	}
	return append(v4, v6...)
}
