package registry

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"strings"
	"sync/atomic"
	"time"

	"github.com/egress-proxies/egress/driver/probe/reload"
	"github.com/hashicorp/consul/api"
	"github.com/hashicorp/go-hclog"
)

// callLimit bounds one call: an agent that hangs is an agent that is down.
const callLimit = 10 * time.Second

var (
	// errMissing: Consul does not know the check.
	errMissing = errors.New("consul does not know the check")
	// errDown: Consul did not answer, or with a 5xx.
	errDown = errors.New("consul does not answer")
)

// refusalError is an answer that will stay the same until a person changes
// something.
type refusalError struct{ text string }

func (e *refusalError) Error() string { return e.text }

// agent is the local Consul agent.
type agent struct {
	config Config
	client *api.Client
	dialer *transport
	token  *reload.File[string]
	logger hclog.Logger
	down   atomic.Bool
}

func newAgent(config Config) (*agent, error) {
	a := &agent{config: config, logger: config.Logger, dialer: newTransport(config.CAFile)}
	clientConfig := &api.Config{Address: config.Address, Token: config.Token, HttpClient: &http.Client{Transport: a.dialer}}
	client, err := api.NewClient(clientConfig)
	if err != nil {
		return nil, fmt.Errorf("address %q: %w", config.Address, err)
	}
	a.client = client
	if config.TokenFile != "" {
		a.token = reload.NewFile(config.TokenFile, func(content []byte) (string, error) {
			token := strings.TrimSpace(string(content))
			if token == "" {
				return "", errors.New("is empty")
			}
			return token, nil
		})
	}
	return a, nil
}

func (a *agent) close() { a.dialer.CloseIdleConnections() }

// call makes one call within callLimit, with the token of now, and turns its
// error into one of ours. doing says what for, right the permission it needs.
func (a *agent) call(ctx context.Context, doing, right string, request func(*api.QueryOptions) error) error {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	options := new(api.QueryOptions)
	if a.token != nil {
		token, ok, err := a.token.Get()
		if !ok {
			return &refusalError{"token_file: " + err.Error()}
		}
		options.Token = token
	}
	err := a.translate(request(options.WithContext(ctx)), doing, right, options.Token)
	if ctx.Err() != nil && errors.Is(ctx.Err(), context.Canceled) {
		return err
	}
	a.noticeOutage(err)
	return err
}

func (a *agent) translate(err error, doing, right, token string) error {
	if err == nil {
		return nil
	}
	var answer api.StatusError
	if !errors.As(err, &answer) {
		return fmt.Errorf("%w: %s: %w", errDown, doing, err)
	}
	body := strings.TrimSpace(answer.Body)
	for _, secret := range []string{token, a.config.Token} {
		if secret != "" {
			body = strings.ReplaceAll(body, secret, "<redacted>")
		}
	}
	body = body[:min(len(body), 300)]
	switch {
	// Consul before 1.13 says so with a 500.
	case strings.Contains(body, "Unknown check"), strings.Contains(body, "Unknown service"), strings.Contains(body, "does not have associated TTL"):
		return errMissing
	case answer.Code == http.StatusForbidden, strings.Contains(body, "ACL not found"):
		return &refusalError{fmt.Sprintf("consul refused to %s (%d): the token needs %s: %s", doing, answer.Code, right, body)}
	case answer.Code >= 500, answer.Code == http.StatusTooManyRequests:
		return fmt.Errorf("%w: %s: status %d: %s", errDown, doing, answer.Code, body)
	default:
		return &refusalError{fmt.Sprintf("consul refused to %s (%d): %s", doing, answer.Code, body)}
	}
}

// noticeOutage logs when Consul goes away and when it is back, once for all
// endpoints.
func (a *agent) noticeOutage(err error) {
	if errors.Is(err, errDown) {
		if !a.down.Swap(true) {
			a.logger.Warn("Consul does not answer: proxies are kept, and registered when it is back", "address", a.config.Address, "error", err)
		}
		return
	}
	if a.down.Swap(false) {
		a.logger.Info("Consul answers again", "address", a.config.Address)
	}
}

func serviceWrite(service string) string { return fmt.Sprintf("service:write on %q", service) }

func (a *agent) register(ctx context.Context, registration *api.AgentServiceRegistration) error {
	return a.call(ctx, "register "+registration.ID, serviceWrite(registration.Name), func(o *api.QueryOptions) error {
		options := api.ServiceRegisterOpts{ReplaceExistingChecks: true, Token: o.Token}.WithContext(o.Context())
		return a.client.Agent().ServiceRegisterOpts(registration, options)
	})
}

func (a *agent) update(ctx context.Context, endpoint Endpoint, s status) error {
	return a.tell(ctx, serviceID(endpoint.Name), endpoint.Service, s.output, s.health())
}

// tell gives a check its status.
func (a *agent) tell(ctx context.Context, id, service, output, health string) error {
	return a.call(ctx, "update the check "+id, serviceWrite(service), func(o *api.QueryOptions) error {
		return a.client.Agent().UpdateTTLOpts(id, output, health, o)
	})
}

// deregister takes gone for success.
func (a *agent) deregister(ctx context.Context, name string) error {
	return a.drop(ctx, serviceID(name), "service:write on its service")
}

// drop deregisters by id, for which the token needs the right.
func (a *agent) drop(ctx context.Context, id, right string) error {
	err := a.call(ctx, "deregister "+id, right, func(o *api.QueryOptions) error {
		return a.client.Agent().ServiceDeregisterOpts(id, o)
	})
	if errors.Is(err, errMissing) {
		return nil
	}
	return err
}

// known is the status that the agent has for the endpoint, if it has it at the
// same address.
func (a *agent) known(ctx context.Context, endpoint Endpoint) (status, error) {
	var info *api.AgentServiceChecksInfo
	id := serviceID(endpoint.Name)
	err := a.call(ctx, "read "+id, fmt.Sprintf("service:read on %q", endpoint.Service), func(o *api.QueryOptions) (err error) {
		_, info, err = a.client.Agent().AgentHealthServiceByIDOpts(id, o)
		return err
	})
	if err != nil && !errors.Is(err, errMissing) {
		return status{}, err
	}
	if info == nil || info.Service == nil || info.Service.Address != endpoint.Address || info.Service.Port != endpoint.Port {
		return unproven, nil
	}
	found := unproven
	for _, check := range info.Checks {
		if check.CheckID == id {
			found.passing, found.output = check.Status == api.HealthPassing, check.Output
		}
	}
	// Without one, or with a spelling that isn't ours, it stays unknown.
	found.exitIP, _ = netip.ParseAddr(info.Service.Meta["exit_ip"])
	return found, nil
}

// services are those that the agent has, by id; an empty filter is for all.
func (a *agent) services(ctx context.Context, filter string) (services map[string]*api.AgentService, err error) {
	err = a.call(ctx, "list the agent's services", "service:read", func(o *api.QueryOptions) (err error) {
		services, err = a.client.Agent().ServicesWithFilterOpts(filter, o)
		return err
	})
	return services, err
}

// targets are the ids of the publisher's targets in the agent.
func (a *agent) targets(ctx context.Context, publisher string) (map[place]string, error) {
	services, err := a.services(ctx, fmt.Sprintf("Meta.publisher == %q", publisher))
	if err != nil {
		return nil, err
	}
	found := map[place]string{}
	for id, service := range services {
		if strings.HasPrefix(id, idPrefix+"target-") {
			found[place{service.Meta["provider"], service.Meta["target"]}] = id
		}
	}
	return found, nil
}

// published are the names of this cluster's and this node's endpoints in the
// agent.
func (a *agent) published(ctx context.Context) ([]string, error) {
	services, err := a.services(ctx, "")
	if err != nil {
		return nil, err
	}
	var names []string
	for id, service := range services {
		name := service.Meta["instance"]
		if id == serviceID(name) && service.Meta["cluster"] == a.config.Cluster && service.Meta["node"] == a.config.Node {
			names = append(names, name)
		}
	}
	return names, nil
}
