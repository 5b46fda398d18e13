package driver

import (
	"github.com/egress-proxies/egress/driver/registry"
)

// registry gives the registrar of this node. It is made for the first task,
// which is the first to tell the id of the node.
func (d *Driver) registry(s *settings, node string) registrar {
	if node == "" {
		node = s.records.node() // a task that only its id is known of
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.registrar != nil {
		return d.registrar
	}
	consul := s.config.Consul
	if !consul.Enabled {
		d.registrar = unregistered{}
		return d.registrar
	}
	made, err := d.newRegistry(registry.Config{
		Address: consul.Address, Token: consul.Token, TokenFile: consul.TokenFile, CAFile: consul.CAFile,
		Service: consul.Service, DeregisterAfter: consul.DeregisterAfter,
		Cluster: s.config.Cluster, Node: node, Logger: d.logger.Named("consul"),
	})
	if err != nil {
		d.logger.Error("proxies are not registered in Consul", "error", err)
		return unregistered{}
	}
	if d.closed {
		return unregistered{}
	}
	d.registrar = made
	d.wg.Go(func() { d.reconcile(s, made) })
	return made
}

// reconcile removes the registrations that an earlier process left behind. The
// tasks that were recovered by then own theirs, and so does every instance that
// there is a record of. While Consul does not answer it tries again: what is
// registered there outlives it.
func (d *Driver) reconcile(s *settings, registrar registrar) {
	for failed := false; ; failed = true {
		wait(d.ctx, d.timing.reconcile)
		if d.ctx.Err() != nil {
			return
		}
		var owned []string
		for _, record := range s.records.all() {
			if !record.Orphan {
				owned = append(owned, record.Ref.Name)
			}
		}
		removed, err := registrar.Reconcile(d.ctx, owned...)
		if len(removed) > 0 {
			d.logger.Info("removing stale registrations from Consul", "instances", removed)
		}
		if err == nil || d.ctx.Err() != nil {
			return
		}
		if !failed {
			d.logger.Warn("stale registrations in Consul could not be looked for, trying on", "error", err)
		}
	}
}
