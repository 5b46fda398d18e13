package command

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	consul "github.com/hashicorp/consul/api"

	"github.com/egress-proxies/egress/lease/api"
	"github.com/egress-proxies/egress/lease/leasetest"
)

// documented are the rules of the Consul token in docs/operations.md.
func documented(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("../../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	_, after, found := strings.Cut(string(text), "The Consul token needs ")
	sentence, _, ended := strings.Cut(after, ".\n")
	rules := regexp.MustCompile("`(\\w+) (\"[^\"]*\") (\\w+)`").FindAllStringSubmatch(sentence, -1)
	if !found || !ended || len(rules) < 5 {
		t.Fatalf("no rules of the Consul token in docs/operations.md, but %q", sentence)
	}
	var policy strings.Builder
	for _, rule := range rules {
		fmt.Fprintf(&policy, "%s %s { policy = %q }\n", rule[1], rule[2], rule[3])
	}
	return policy.String()
}

// The token that the documentation asks for is enough: a replica leads, notices
// the death of the leader in time, and grants.
func TestDocumentedConsulTokenIsEnough(t *testing.T) {
	t.Parallel()
	guarded := leasetest.StartGuardedConsul(t)
	guarded.Proxy("p", "127.0.0.1", 3000, "", nil)
	policy, _, err := guarded.Client.ACL().PolicyCreate(&consul.ACLPolicy{Name: "lease", Rules: documented(t)}, nil)
	if err != nil {
		t.Fatal(err)
	}
	token, _, err := guarded.Client.ACL().TokenCreate(&consul.ACLToken{Policies: []*consul.ACLTokenPolicyLink{{ID: policy.ID}}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte(token.SecretID), 0o600); err != nil {
		t.Fatal(err)
	}
	args := []string{"--store", "consul", "--consul-token-file", file}
	leader := newReplica(t, guarded.Address, args...)
	leader.ready()
	follower := newReplica(t, guarded.Address, args...)
	follower.ready()
	leader.kill()
	if _, err := follower.client.Acquire(t.Context(), api.Acquire{}, ""); err != nil {
		t.Error(err)
	}
	for _, r := range []*replica{leader, follower} {
		if text := r.output.String(); strings.Contains(text, "ermission") || strings.Contains(text, "without a check") {
			t.Errorf("%s said:\n%s", r.address, text)
		}
	}
}

// A Consul that lost its data is told from one that is merely down: what it does
// not know is forgotten, and the service goes on.
func TestConsulThatLostItsDataStartsEmpty(t *testing.T) {
	t.Parallel()
	server := leasetest.StartConsul(t)
	server.Proxy("p", "127.0.0.1", 3000, "", nil)
	r := newReplica(t, server.Address, "--store", "consul")
	r.ready()
	leases, err := r.client.Acquire(t.Context(), api.Acquire{TTL: api.Duration(time.Hour)}, "")
	if err != nil {
		t.Fatal(err)
	}
	server.Forget()
	server.Start()
	server.Proxy("p", "127.0.0.1", 3000, "", nil)
	leasetest.Until(t, time.Minute, "the lease is unknown", func() error {
		_, err := r.client.Renew(t.Context(), leases[0].ID, 0)
		var p *api.Problem
		if errors.As(err, &p) && p.Code() == api.CodeUnknownLease {
			return nil
		}
		return fmt.Errorf("renewal: %w", err)
	})
	leasetest.Until(t, time.Minute, "the proxy is leased again", func() error {
		_, err := r.client.Acquire(t.Context(), api.Acquire{}, "")
		return err
	})
}
