// Package client talks to the lease service.
package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/egress-proxies/egress/lease/api"
)

// Config makes a Client.
type Config struct {
	// Address is the URL of the service: "http://127.0.0.1:7700". Required without
	// Replicas.
	Address string
	// Replicas gives the URLs of the replicas that work now, such as
	// lease/consul.Replicas; each attempt at a request goes to another one. It is
	// asked each time. Nil is that there is only the Address.
	Replicas func(context.Context) ([]string, error)
	// Token is the bearer token; empty for none.
	Token string
	// HTTP sends the requests; a client without a timeout when nil. Acquires
	// that wait take as long as they wait.
	HTTP *http.Client
}

// Client talks to one lease service. It is safe for concurrent use.
type Client struct {
	replicas func(context.Context) ([]string, error)
	// turn counts attempts, each of which takes the next replica.
	turn  atomic.Uint64
	token string
	http  *http.Client
}

// New makes a client. The error says what is wrong with the address.
func New(c Config) (*Client, error) {
	if c.HTTP == nil {
		c.HTTP = &http.Client{}
	}
	made := &Client{replicas: c.Replicas, token: c.Token, http: c.HTTP}
	if c.Replicas == nil {
		u, err := url.Parse(c.Address)
		if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
			return nil, fmt.Errorf("address of the lease service %q: want a URL such as http://127.0.0.1:7700", c.Address)
		}
		only := []string{strings.TrimSuffix(c.Address, "/")}
		made.replicas = func(context.Context) ([]string, error) { return only, nil }
	}
	made.turn.Store(rand.Uint64N(1 << 32)) // not all clients begin with the same one
	return made, nil
}

// errNoReplica: a list of replicas was empty. It may pass.
var errNoReplica = errors.New("lease service: no replica works")

// base is the URL of the replica whose turn it is.
func (c *Client) base(ctx context.Context) (string, error) {
	all, err := c.replicas(ctx)
	if err != nil {
		return "", fmt.Errorf("find the lease service: %w", err)
	}
	if len(all) == 0 {
		return "", errNoReplica
	}
	return all[c.turn.Add(1)%uint64(len(all))], nil
}

// Acquire asks for leases. An error that the service gave is an *api.Problem.
// key makes a repeated request safe; empty lets the client choose one, so that
// it may repeat the request itself.
func (c *Client) Acquire(ctx context.Context, in api.Acquire, key string) ([]api.Lease, error) {
	if key == "" {
		key = newKey()
	}
	var out api.Leases
	err := c.repeat(ctx, func() error {
		return c.do(ctx, http.MethodPost, api.PathLeases, key, in, &out)
	})
	return out.Leases, err
}

// Renew makes the lease last longer; ttl 0 keeps its length.
func (c *Client) Renew(ctx context.Context, id string, ttl time.Duration) (api.Lease, error) {
	var out api.Lease
	err := c.repeat(ctx, func() error {
		return c.do(ctx, http.MethodPost, withID(api.PathRenew, id), "", api.Renew{TTL: api.Duration(ttl)}, &out)
	})
	return out, err
}

// Report tells how the proxy did: "ok", "blocked" or "failed". An empty target
// is that of the lease. The cooldown is nil when there is none.
func (c *Client) Report(ctx context.Context, id, result, target string) (*api.Cooldown, error) {
	var out api.Reported
	err := c.do(ctx, http.MethodPost, withID(api.PathReport, id), "", api.Report{Result: result, Target: target}, &out)
	return out.Cooldown, err
}

// Release gives the lease back. One that has ended is no error.
func (c *Client) Release(ctx context.Context, id string) error {
	return c.repeat(ctx, func() error {
		return c.do(ctx, http.MethodDelete, withID(api.PathLease, id), "", nil, nil)
	})
}

// Leases are all leases.
func (c *Client) Leases(ctx context.Context) ([]api.Lease, error) {
	all := []api.Lease{}
	for after := ""; ; {
		var page api.Leases
		if err := c.do(ctx, http.MethodGet, api.PathLeases+query("after", after), "", nil, &page); err != nil {
			return nil, err
		}
		all = append(all, page.Leases...)
		if after = page.Next; after == "" {
			return all, nil
		}
	}
}

// Proxies are the proxies that the selector chooses.
func (c *Client) Proxies(ctx context.Context, selector string) ([]api.Proxy, error) {
	all := []api.Proxy{}
	for after := ""; ; {
		var page api.Proxies
		if err := c.do(ctx, http.MethodGet, api.PathProxies+query("selector", selector, "after", after), "", nil, &page); err != nil {
			return nil, err
		}
		all = append(all, page.Proxies...)
		if after = page.Next; after == "" {
			return all, nil
		}
	}
}

// Targets are the places where proxies are launched, as each node sees them.
func (c *Client) Targets(ctx context.Context) ([]api.Target, error) {
	all := []api.Target{}
	for after := ""; ; {
		var page api.Targets
		if err := c.do(ctx, http.MethodGet, api.PathTargets+query("after", after), "", nil, &page); err != nil {
			return nil, err
		}
		all = append(all, page.Targets...)
		if after = page.Next; after == "" {
			return all, nil
		}
	}
}

// Freeze stops new leases on a proxy.
func (c *Client) Freeze(ctx context.Context, id, reason string) (api.Proxy, error) {
	return c.mark(ctx, api.PathFreeze, id, reason)
}

// Drain stops new leases and renewals on a proxy.
func (c *Client) Drain(ctx context.Context, id, reason string) (api.Proxy, error) {
	return c.mark(ctx, api.PathDrain, id, reason)
}

// Unfreeze lets a proxy be leased again.
func (c *Client) Unfreeze(ctx context.Context, id string) (api.Proxy, error) {
	return c.mark(ctx, api.PathUnfreeze, id, "")
}

func (c *Client) mark(ctx context.Context, path, id, reason string) (api.Proxy, error) {
	var out api.Proxy
	err := c.do(ctx, http.MethodPost, withID(path, id), "", api.MarkRequest{Reason: reason}, &out)
	return out, err
}

func withID(path, id string) string {
	return strings.Replace(path, "{id}", url.PathEscape(id), 1)
}

// query makes ?key=value&… of the pairs whose value is not empty.
func query(pairs ...string) string {
	values := url.Values{}
	for i := 0; i < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			values.Set(pairs[i], pairs[i+1])
		}
	}
	if len(values) == 0 {
		return ""
	}
	return "?" + values.Encode()
}

// maxAnswer bounds what is read: a page of 1000 proxies is below 2 MB.
const maxAnswer = 64 << 20

// do sends one request.
func (c *Client) do(ctx context.Context, method, path, key string, in, out any) error {
	var body io.Reader
	if in != nil {
		data, err := json.Marshal(in)
		if err != nil {
			return fmt.Errorf("encode the request: %w", err)
		}
		body = bytes.NewReader(data)
	}
	base, err := c.base(ctx)
	if err != nil {
		return err
	}
	request, err := http.NewRequestWithContext(ctx, method, base+path, body)
	if err != nil {
		return err
	}
	if in != nil {
		request.Header.Set("Content-Type", "application/json")
	}
	if key != "" {
		request.Header.Set(api.HeaderKey, key)
	}
	if c.token != "" {
		request.Header.Set("Authorization", "Bearer "+c.token)
	}
	response, err := c.http.Do(request)
	if err != nil {
		return fmt.Errorf("lease service: %w", err)
	}
	defer response.Body.Close()
	data, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer))
	if err != nil {
		return fmt.Errorf("lease service: read the answer: %w", err)
	}
	if response.StatusCode >= 300 {
		return problem(response, data)
	}
	if out == nil || len(data) == 0 {
		return nil
	}
	if err := json.Unmarshal(data, out); err != nil {
		return fmt.Errorf("lease service: %s %s answered what is not expected: %w", method, path, err)
	}
	return nil
}

// problem reads an error; one that something else between here and the service
// gave has no code.
func problem(response *http.Response, data []byte) error {
	p := &api.Problem{}
	if err := json.Unmarshal(data, p); err != nil || p.Type == "" {
		p = &api.Problem{Title: "unexpected answer", Detail: fmt.Sprintf("lease service: unexpected answer %s", response.Status)}
	}
	p.Status = response.StatusCode
	if p.RetryAfterSeconds == 0 {
		p.RetryAfterSeconds, _ = strconv.Atoi(response.Header.Get("Retry-After"))
	}
	return p
}
