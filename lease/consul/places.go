package consul

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"

	"github.com/hashicorp/consul/api"
	"github.com/hashicorp/go-hclog"

	"github.com/egress-proxies/egress/lease"
)

// PlaceWatcher follows the places where proxies are launched, which the drivers
// register in the catalog. While Consul does not answer, the last known ones
// stay.
type PlaceWatcher struct {
	// Client talks to Consul. Required.
	Client *api.Client
	// Service is the name to watch. Required.
	Service string
	// Update gets all places whenever they changed. Required.
	Update func([]lease.Place)
	// Logger is silent when nil.
	Logger hclog.Logger
}

// String names the watcher in logs.
func (w *PlaceWatcher) String() string { return "target watcher" }

// Run watches until ctx ends, which is not an error.
func (w *PlaceWatcher) Run(ctx context.Context) error {
	logger := w.Logger
	if logger == nil {
		logger = hclog.NewNullLogger()
	}
	var index uint64
	backoff, down := minBackoff, false
	for ctx.Err() == nil {
		entries, next, err := query(ctx, w.Client, w.Service, index)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			if !down {
				logger.Warn("Consul does not answer; the last known targets stay", "service", w.Service, "error", err)
			}
			down, index = true, 0
			pause(ctx, backoff/2+rand.N(backoff/2))
			backoff = min(2*backoff, maxBackoff)
			continue
		case next != index:
			w.Update(placesOf(entries))
			pause(ctx, minPause)
		}
		index, backoff, down = nextIndex(index, next), minBackoff, false
	}
	return nil
}

// The keys of a target's meta that are no facts. The driver writes them;
// docs/health.md has the contract.
const (
	metaProvider  = "provider"
	metaType      = "type"
	metaTarget    = "target"
	metaNode      = "node"
	metaReady     = "ready"
	metaReason    = "reason"
	metaAdvice    = "advice"
	metaCluster   = "cluster"
	metaPublisher = "publisher"
)

func placesOf(entries []entry) []lease.Place {
	list := make([]lease.Place, 0, len(entries))
	for i := range entries {
		if entries[i].Service.Meta[metaTarget] != "" {
			list = append(list, entries[i].place())
		}
	}
	return list
}

// place reads the entry.
func (e *entry) place() lease.Place {
	meta := e.Service.Meta
	p := lease.Place{
		ID: e.Node.Node + "/" + e.Service.ID, Provider: meta[metaProvider], Type: meta[metaType], Name: meta[metaTarget],
		Node: meta[metaNode], Reason: meta[metaReason], Advice: meta[metaAdvice], Facts: map[string]string{},
	}
	if p.Node == "" {
		p.Node = e.Node.Node
	}
	for key, value := range meta {
		switch key {
		case metaProvider, metaType, metaTarget, metaNode, metaReady, metaReason, metaAdvice, metaCluster, metaPublisher:
		default:
			p.Facts[key] = value
		}
	}
	switch silent := e.silent(); {
	case silent != "":
		p.State, p.Reason, p.Advice = lease.PlaceSilent, "Silent", silent
	case meta[metaReady] == "true":
		p.State = lease.PlaceReady
	default:
		p.State = lease.PlaceNotReady
	}
	return p
}

// silent says why nobody vouches for the entry, or is empty. The driver itself
// never makes a check critical.
func (e *entry) silent() string {
	for _, c := range e.Checks {
		if c.Status != api.HealthCritical {
			continue
		}
		if c.ServiceID == "" {
			return fmt.Sprintf("look at the node: in Consul it fails: %s", strings.TrimSpace(c.Output))
		}
		return "look whether Nomad and its plugin run on the node: nothing was heard of it in time"
	}
	return ""
}
