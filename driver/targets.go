package driver

import (
	"context"
	"os"

	"github.com/egress-proxies/egress/driver/registry"
	"github.com/egress-proxies/egress/fingerprint"
)

// targetRegistrar publishes the targets of the providers; *registry.Targets is
// one.
type targetRegistrar interface {
	Set(targets []registry.Target, silent []string)
	Run(ctx context.Context)
}

// publishTargets tells Consul what the node is told of the providers' targets.
// It is called with the lock held.
func (d *Driver) publishTargets(monitor *fingerprint.Monitor, s *settings) {
	consul := s.config.Consul
	if !consul.Enabled || consul.TargetService == "" {
		return
	}
	host, err := os.Hostname()
	if err != nil {
		d.logger.Warn("the targets in Consul do not name this node", "error", err)
	}
	targets, err := d.newTargets(registry.TargetConfig{
		Config: registry.Config{
			Address: consul.Address, Token: consul.Token, TokenFile: consul.TokenFile, CAFile: consul.CAFile,
			Service: consul.TargetService, DeregisterAfter: consul.DeregisterAfter,
			Cluster: s.config.Cluster, Node: host, Logger: d.logger.Named("targets"),
		},
		Home: s.config.StateDir,
	})
	if err != nil {
		d.logger.Error("targets are not registered in Consul", "error", err)
		return
	}
	d.wg.Go(func() { targets.Run(d.ctx) })
	d.wg.Go(func() {
		for result := range monitor.Results(d.ctx) {
			targets.Set(targetsOf(result.Standings), result.Silent)
		}
	})
}

// targetsOf are the standings as they are registered.
func targetsOf(standings []fingerprint.Standing) []registry.Target {
	targets := make([]registry.Target, len(standings))
	for i, s := range standings {
		targets[i] = registry.Target{
			Provider: s.Provider, Type: s.Type, Name: s.Target, Ready: s.Ready,
			Reason: string(s.Reason), Advice: s.Advice, Facts: s.Facts,
		}
		if s.Ready {
			targets[i].Advice = "" // "nothing"
		}
	}
	return targets
}
