package consul

import (
	"context"
	"fmt"
	"net"
	"strconv"

	"github.com/hashicorp/consul/api"
)

// Replicas finds the replicas of a lease service for lease/client: the URLs of
// the passing instances of its Consul service. The scheme is "http" or "https".
func Replicas(client *api.Client, service, scheme string) func(context.Context) ([]string, error) {
	return func(ctx context.Context) ([]string, error) {
		entries, _, err := client.Health().Service(service, "", true, (&api.QueryOptions{AllowStale: true}).WithContext(ctx))
		if err != nil {
			return nil, fmt.Errorf("service %q in Consul: %w", service, err)
		}
		urls := make([]string, len(entries))
		for i, entry := range entries {
			host := entry.Service.Address
			if host == "" {
				host = entry.Node.Address
			}
			urls[i] = scheme + "://" + net.JoinHostPort(host, strconv.Itoa(entry.Service.Port))
		}
		return urls, nil
	}
}
