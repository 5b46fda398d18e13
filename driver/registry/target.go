package registry

import (
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/hashicorp/consul/api"
)

// DefaultTargetService is the Consul service name of targets.
const DefaultTargetService = "egress-target"

// Target is a place where instances are launched (a hypervisor, a project, an
// API server), as this node sees it. docs/health.md says what is registered.
type Target struct {
	// Provider and Type are the name and the type of the provider block.
	Provider, Type string
	// Name of the target in the provider.
	Name string
	// Ready is true when an instance could be launched there.
	Ready bool
	// Reason is one word; "Reachable" when it is ready.
	Reason string
	// Advice says what a person does about it, in the same words for the same
	// reason.
	Advice string
	// Facts must be steady: each change is a write to Consul. Those whose keys
	// Consul does not take, or that are the registry's own, are left out.
	Facts map[string]string
}

// targetKeys are the meta keys that the registry writes itself.
var targetKeys = []string{"advice", "cluster", "node", "provider", "publisher", "ready", "reason", "target", "type"}

// place names a target among those of a node.
type place struct{ provider, target string }

func (t Target) place() place { return place{t.Provider, t.Name} }

// equal is true when Consul would hold the same of both.
func (t Target) equal(o Target) bool {
	return t.Provider == o.Provider && t.Type == o.Type && t.Name == o.Name && t.Ready == o.Ready &&
		t.Reason == o.Reason && t.Advice == o.Advice && maps.Equal(t.Facts, o.Facts)
}

// health is in Consul's words. A target that is not ready is a warning: a
// service that is critical for long is removed by Consul, and a broken target
// must stay to be seen. Critical is what Consul makes of a node that is silent.
func (t Target) health() string {
	if t.Ready {
		return api.HealthPassing
	}
	return api.HealthWarning
}

// output is the text of the check.
func (t Target) output() string {
	if t.Advice == "" {
		return t.Reason
	}
	return t.Reason + ": " + t.Advice
}

var notInID = regexp.MustCompile(`[^A-Za-z0-9-]+`)

// short is a hash that tells texts apart.
func short(texts ...string) string {
	sum := sha256.Sum256([]byte(strings.Join(texts, "\x00")))
	return hex.EncodeToString(sum[:6])
}

// targetID is the id of the service and of its check: legible, and unique in
// the agent, which several plugins may share.
func targetID(at place, publisher string) string {
	name := notInID.ReplaceAllString(at.provider+"-"+at.target, "-")
	return idPrefix + "target-" + name[:min(len(name), 80)] + "-" + short(at.provider, at.target, publisher)
}

// meta is what readers see. It has all that the check says too: Consul hands the
// output of a check on minutes later unless its status changes, and a service
// and its check are not written at one moment.
func (t Target) meta(config TargetConfig) map[string]string {
	meta := map[string]string{
		"cluster":   config.Cluster,
		"node":      config.Node,
		"publisher": config.publisher(),
		"provider":  t.Provider,
		"type":      t.Type,
		"target":    t.Name,
		"reason":    t.Reason,
		"ready":     strconv.FormatBool(t.Ready),
		"advice":    t.Advice,
	}
	maps.DeleteFunc(meta, func(_, value string) bool { return value == "" })
	keys := slices.Sorted(maps.Keys(t.Facts))
	for _, key := range keys {
		value := t.Facts[key]
		if len(meta) >= maxPairs || slices.Contains(targetKeys, key) || !keyForm.MatchString(key) || len(key) > maxKey {
			continue
		}
		if value != "" && checkValue(key, value) == nil {
			meta[key] = value
		}
	}
	return meta
}

func (t Target) registration(config TargetConfig) *api.AgentServiceRegistration {
	id := targetID(t.place(), config.publisher())
	return &api.AgentServiceRegistration{
		ID:   id,
		Name: config.Service,
		Tags: []string{"egress", t.Type},
		Meta: t.meta(config),
		Check: &api.AgentServiceCheck{
			CheckID:                        id,
			Name:                           "an instance could be launched",
			TTL:                            targetTTL.String(),
			Status:                         t.health(),
			DeregisterCriticalServiceAfter: config.DeregisterAfter.String(),
		},
	}
}
