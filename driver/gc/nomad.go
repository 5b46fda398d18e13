package gc

import (
	"context"
	"errors"

	"github.com/hashicorp/nomad/api"
)

// client asks a real Nomad.
type client struct{ api *api.Client }

// NewNomad asks the agent at address; empty is NOMAD_ADDR or Nomad's default. An
// empty token is NOMAD_TOKEN.
func NewNomad(address, token string) (Nomad, error) {
	config := api.DefaultConfig()
	if address != "" {
		config.Address = address
	}
	if token != "" {
		config.SecretID = token
	}
	made, err := api.NewClient(config)
	if err != nil {
		return nil, err
	}
	return client{made}, nil
}

// page is how many rows one request may answer with.
const page = 1000

func (c client) LiveAllocs(ctx context.Context, namespace string) (map[string]bool, error) {
	live := make(map[string]bool)
	query := &api.QueryOptions{Namespace: namespace, PerPage: page}
	for {
		allocs, meta, err := c.api.Allocations().List(query.WithContext(ctx))
		if err != nil {
			return nil, err
		}
		if meta.LastIndex == 0 {
			// The client ignores headers that it can't read, and the next page with
			// them: what follows would look dead.
			return nil, errors.New("the answer has no X-Nomad-Index header: want the address of a Nomad agent, and no proxy" +
				" that removes its headers")
		}
		for _, alloc := range allocs {
			if !over(alloc.ClientStatus) {
				live[alloc.ID] = true
			}
		}
		if meta.NextToken == "" {
			return live, nil
		}
		query.NextToken = meta.NextToken
	}
}

// over is true when a client is done with an allocation. One that the servers
// want stopped and that still runs lives; so does one whose client is away for a
// while ("unknown"). A lost one was replaced.
func over(status string) bool {
	switch status {
	case api.AllocClientStatusComplete, api.AllocClientStatusFailed, api.AllocClientStatusLost:
		return true
	default:
		return false
	}
}

func (c client) Nodes(ctx context.Context) (map[string]bool, error) {
	nodes, _, err := c.api.Nodes().List((&api.QueryOptions{}).WithContext(ctx))
	if err != nil {
		return nil, err
	}
	known := make(map[string]bool, len(nodes))
	for _, node := range nodes {
		known[node.ID] = true
	}
	return known, nil
}
