package driver

import (
	"context"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/nomad/plugins/drivers"
	pstructs "github.com/hashicorp/nomad/plugins/shared/structs"

	"github.com/egress-proxies/egress/provider"
)

// maxChecks is how many providers are checked at once.
const maxChecks = 16

// Fingerprint streams the health of the node's providers: at once, and then
// whenever it changes. It is where the driver's own work begins.
func (d *Driver) Fingerprint(ctx context.Context) (<-chan *drivers.Fingerprint, error) {
	ch := make(chan *drivers.Fingerprint)
	err := d.spawn(func() {
		defer close(ch)
		d.begin()
		d.fingerprint(ctx, ch)
	})
	return ch, err
}

func (d *Driver) fingerprint(ctx context.Context, ch chan<- *drivers.Fingerprint) {
	var published *drivers.Fingerprint
	bound := d.timing.firstCheck
	ticker := time.NewTicker(d.timing.check)
	defer ticker.Stop()
	for {
		if found := d.health(ctx, bound); !reflect.DeepEqual(found, published) {
			select {
			case ch <- found:
				published = found
			case <-ctx.Done():
				return
			case <-d.ctx.Done():
				return
			}
		}
		bound = d.timing.checkTimeout
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		case <-d.ctx.Done():
			return
		}
	}
}

// health is the fingerprint of now.
func (d *Driver) health(ctx context.Context, bound time.Duration) *drivers.Fingerprint {
	s, err := d.current()
	if err != nil || len(s.places) == 0 {
		return &drivers.Fingerprint{
			Attributes:        map[string]*pstructs.Attribute{},
			Health:            drivers.HealthStateUndetected,
			HealthDescription: "no provider is configured",
		}
	}
	found := &drivers.Fingerprint{
		Attributes: map[string]*pstructs.Attribute{"driver.egress": pstructs.NewStringAttribute(d.options.Version)},
		Health:     drivers.HealthStateUnhealthy,
	}
	checked := checkAll(ctx, slices.Collect(maps.Values(s.places)), bound)
	var problems []string
	for _, name := range slices.Sorted(maps.Keys(checked)) {
		ready, why := readiness(checked[name])
		found.Attributes["driver.egress."+name+".type"] = pstructs.NewStringAttribute(s.places[name].kind)
		found.Attributes["driver.egress."+name+".ready"] = pstructs.NewBoolAttribute(ready)
		if ready {
			found.Health = drivers.HealthStateHealthy
		}
		for _, problem := range why {
			problems = append(problems, name+"/"+problem)
		}
	}
	found.HealthDescription = drivers.DriverHealthy
	if len(problems) > 0 {
		found.HealthDescription = "not ready: " + strings.Join(problems, ", ")
	}
	return found
}

// readiness is true while any target is ready; why names those that are not,
// in words that stay the same for the same fault.
func readiness(verdicts []provider.Verdict) (ready bool, why []string) {
	for _, verdict := range verdicts {
		if verdict.Ready {
			ready = true
		} else {
			why = append(why, fmt.Sprintf("%s: %s", verdict.Target, verdict.Reason))
		}
	}
	return ready, why
}

// checkAll checks the providers at once, all within one bound. One that can't
// be checked is ready.
func checkAll(ctx context.Context, places []*place, bound time.Duration) map[string][]provider.Verdict {
	ctx, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	var (
		wg      sync.WaitGroup
		mu      sync.Mutex // guards checked
		checked = make(map[string][]provider.Verdict, len(places))
		room    = make(chan struct{}, maxChecks)
	)
	for _, place := range places {
		wg.Go(func() {
			room <- struct{}{}
			defer func() { <-room }()
			verdicts := []provider.Verdict{{Target: "local", Ready: true, Reason: provider.Reachable}}
			if checker, ok := place.Provider.(provider.Checker); ok {
				verdicts = checker.Check(ctx)
			}
			mu.Lock()
			defer mu.Unlock()
			checked[place.name] = verdicts
		})
	}
	wg.Wait()
	return checked
}
