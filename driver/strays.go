package driver

import (
	"context"
	"errors"

	"github.com/egress-proxies/egress/driver/gc"
)

// errStray: there is a record of an instance, and no task.
var errStray = errors.New("its allocation is over and nobody destroyed it")

// findStrays gives the instances of this node that nobody came back for to the
// collector: agent and plugin were killed in the middle of a start, and the job
// was stopped before they were up again. Only Nomad's word that an allocation is
// over counts; what can't be read stays.
func (d *Driver) findStrays(ctx context.Context, s *settings) {
	asked := make(map[string]map[string]bool) // live allocations by namespace
	for _, found := range s.records.all() {
		slot, err := parseTaskID(found.TaskID)
		if err != nil || found.Orphan || found.Namespace == "" || d.store.busy(slot) {
			continue
		}
		live, ok := asked[found.Namespace]
		if !ok {
			if live, err = d.liveAllocs(ctx, s, found.Namespace); err != nil {
				d.logger.Debug("Nomad can't be asked for strays", "namespace", found.Namespace, "error", err)
			}
			asked[found.Namespace] = live
		}
		// The record was there before Nomad was asked, so that its allocation was too.
		if live == nil || live[slot.alloc] || d.store.busy(slot) {
			continue
		}
		d.abandon(s, found, errStray)
	}
}

// liveAllocs asks the Nomad of the configuration.
func (d *Driver) liveAllocs(ctx context.Context, s *settings, namespace string) (map[string]bool, error) {
	nomad, err := d.newNomad(s.config.Nomad)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, d.timing.get)
	defer cancel()
	return nomad.LiveAllocs(ctx, namespace)
}

func newNomad(config NomadConfig) (gc.Nomad, error) { return gc.NewNomad(config.Address, config.Token) }
