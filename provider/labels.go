package provider

import (
	"crypto/sha256"
	"encoding/base32"
	"fmt"
	"strings"
	"time"
)

// Labels say whose an instance is. Every resource that a provider makes carries
// them, in whatever form the place has for it.
type Labels struct {
	// Cluster is the id of the egress installation; garbage collection never
	// touches another cluster's instances.
	Cluster string `json:"cluster"`
	// Namespace is the Nomad namespace.
	Namespace string `json:"namespace"`
	// Job is the Nomad job id.
	Job string `json:"job"`
	// Group is the task group.
	Group string `json:"group,omitempty"`
	// Alloc is the id of the allocation.
	Alloc string `json:"alloc"`
	// Task is the name of the task.
	Task string `json:"task"`
	// Node is the id of the Nomad node that launched it.
	Node string `json:"node"`
	// CreatedAt is when it was launched, in whole seconds.
	CreatedAt time.Time `json:"created_at"`
}

// The keys of the labels where a place stores them as a map.
const (
	LabelManaged   = "egress-managed"
	LabelCluster   = "egress-cluster"
	LabelNamespace = "egress-namespace"
	LabelJob       = "egress-job"
	LabelGroup     = "egress-group"
	LabelAlloc     = "egress-alloc"
	LabelTask      = "egress-task"
	LabelNode      = "egress-node"
	LabelCreatedAt = "egress-created-at"
)

// Map is the labels as key and value. Values are as given: a place with a
// narrower alphabet encodes them itself.
func (l Labels) Map() map[string]string {
	return map[string]string{
		LabelManaged:   "true",
		LabelCluster:   l.Cluster,
		LabelNamespace: l.Namespace,
		LabelJob:       l.Job,
		LabelGroup:     l.Group,
		LabelAlloc:     l.Alloc,
		LabelTask:      l.Task,
		LabelNode:      l.Node,
		LabelCreatedAt: l.CreatedAt.UTC().Format(time.RFC3339),
	}
}

// LabelsFromMap is the inverse of Map; managed is false when the resource isn't
// ours.
func LabelsFromMap(m map[string]string) (l Labels, managed bool) {
	created, _ := time.Parse(time.RFC3339, m[LabelCreatedAt])
	return Labels{
		Cluster:   m[LabelCluster],
		Namespace: m[LabelNamespace],
		Job:       m[LabelJob],
		Group:     m[LabelGroup],
		Alloc:     m[LabelAlloc],
		Task:      m[LabelTask],
		Node:      m[LabelNode],
		CreatedAt: created,
	}, m[LabelManaged] == "true"
}

// NamePrefix starts the name of every instance.
const NamePrefix = "eg-"

// maxTaskInName keeps a name under 40 characters, well below the 63 of a DNS
// label (RFC 1123), which is what Compute Engine and Kubernetes accept.
const maxTaskInName = 16

// Name is the deterministic name of an instance:
// eg-<first 8 of the allocation>-<task>-<hash>. It depends on the cluster, the
// allocation and the task only, because that is all that is known when a task
// must be destroyed by its id alone; allocation ids are unique across
// namespaces (docs/adr/0002). It is a DNS label of at most 40 characters.
func Name(cluster, alloc, task string) string {
	sum := sha256.Sum256([]byte(cluster + "\x00" + alloc + "\x00" + task))
	hash := strings.ToLower(base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(sum[:]))[:10]
	parts := []string{dnsPart(alloc, 8), dnsPart(task, maxTaskInName), hash}
	name := strings.TrimSuffix(NamePrefix, "-")
	for _, part := range parts {
		if part != "" {
			name += "-" + part
		}
	}
	return name
}

// dnsPart keeps what a DNS label may hold, lower-cased, at most limit long.
func dnsPart(s string, limit int) string {
	var b strings.Builder
	for _, r := range strings.ToLower(s) {
		switch {
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9':
			b.WriteRune(r)
		case b.Len() > 0 && !strings.HasSuffix(b.String(), "-"):
			b.WriteByte('-')
		}
		if b.Len() == limit {
			break
		}
	}
	return strings.Trim(b.String(), "-")
}

// CheckName says whether name can be an instance's name, so that it is safe as
// a file name and as an id. Anything else would be unaddressable.
func CheckName(name string) error {
	if !strings.HasPrefix(name, NamePrefix) || len(name) > 63 {
		return Permanentf("instance name %q: want %s and up to 60 of a-z, 0-9 and -", name, NamePrefix)
	}
	for _, r := range name {
		if (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '-' {
			return Permanentf("instance name %q: character %q is not one of a-z, 0-9 and -", name, r)
		}
	}
	return nil
}

// CheckPlace says whether s can name a provider or a place within one (a host,
// an image key): it becomes part of ids, attribute names and paths.
func CheckPlace(kind, s string) error {
	if s == "" || len(s) > 63 {
		return fmt.Errorf("%s name %q: want 1 to 63 characters", kind, s)
	}
	for i, r := range s {
		alnum := (r >= 'a' && r <= 'z') || (r >= 'A' && r <= 'Z') || (r >= '0' && r <= '9')
		if !alnum && (i == 0 || (r != '-' && r != '_' && r != '.')) {
			return fmt.Errorf("%s name %q: character %q: want letters, digits, and - _ . after the first", kind, s, r)
		}
	}
	return nil
}
