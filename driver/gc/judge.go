package gc

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/egress-proxies/egress/provider"
)

// world is what Nomad said.
type world struct {
	live     map[string]map[string]bool // by namespace; none for one that can't be read
	nodes    map[string]bool            // nil when they can't be read
	problems []error
}

// ask asks for each namespace by its name: a token that may read some of them
// only would see a list of all shortened, not refused.
func ask(ctx context.Context, nomad Nomad, findings []Finding) world {
	asked := world{live: make(map[string]map[string]bool)}
	namespaces := make(map[string]bool)
	for _, finding := range findings {
		namespaces[finding.Instance.Labels.Namespace] = true
	}
	delete(namespaces, "")
	if len(namespaces) == 0 {
		return asked
	}
	for _, namespace := range slices.Sorted(maps.Keys(namespaces)) {
		live, err := nomad.LiveAllocs(ctx, namespace)
		if err != nil {
			asked.problems = append(asked.problems, fmt.Errorf("allocations of namespace %q: %w", namespace, err))
			continue
		}
		asked.live[namespace] = live
	}
	nodes, err := nomad.Nodes(ctx)
	if err != nil {
		asked.problems = append(asked.problems, fmt.Errorf("nodes: %w", err))
		return asked
	}
	asked.nodes = nodes
	return asked
}

// judge says what to do about an instance. Would means that it is garbage.
func judge(instance provider.Instance, world world, options Options) (Action, string) {
	labels := instance.Labels
	created := instance.CreatedAt
	if created.IsZero() {
		created = labels.CreatedAt
	}
	live, readable := world.live[labels.Namespace]
	switch {
	case labels.Cluster != options.Cluster:
		return Skip, fmt.Sprintf("it belongs to cluster %q", labels.Cluster)
	case labels.Alloc == "" || labels.Namespace == "":
		return Skip, "its labels don't say whose it is"
	case !readable:
		return Skip, fmt.Sprintf("namespace %q could not be read", labels.Namespace)
	case live[labels.Alloc]:
		return Keep, "its allocation lives"
	case created.IsZero():
		return Skip, "its age is unknown"
	}
	if age := options.Now().Sub(created); age < options.OlderThan {
		return Keep, fmt.Sprintf("it is %v old, younger than %v", age.Round(time.Second), options.OlderThan)
	}
	if !world.nodes[labels.Node] && !options.UnknownNodes {
		return Skip, fmt.Sprintf("Nomad does not know its node %q (another region's?): --unknown-nodes includes it", labels.Node)
	}
	return Would, fmt.Sprintf("allocation %s is over", labels.Alloc)
}
