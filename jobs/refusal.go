package jobs

import (
	"context"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/hashicorp/go-version"
	"github.com/hashicorp/nomad/api"
)

// Refusal says why allocations of a group find no node.
type Refusal struct {
	// Group is the task group.
	Group string `json:"group"`
	// Nodes says of each node that is refused what it lacks.
	Nodes []NodeRefusal `json:"nodes,omitempty"`
	// Others are the scheduler's own words where no node is to blame.
	Others []string `json:"others,omitempty"`
}

// NodeRefusal is what one node lacks.
type NodeRefusal struct {
	// Node is the node's name.
	Node string `json:"node"`
	// Reasons name the attribute, its value and what is wanted.
	Reasons []string `json:"reasons"`
}

// maxNodes bounds how many nodes are asked for their attributes.
const maxNodes = 100

// Explain says for each group that the scheduler could not place which node
// refuses it, and why.
func Explain(ctx context.Context, client *api.Client, job *api.Job, failed map[string]*api.AllocationMetric) ([]Refusal, error) {
	if len(failed) == 0 {
		return nil, nil
	}
	query := (&api.QueryOptions{}).WithContext(ctx)
	stubs, _, err := client.Nodes().List(query)
	if err != nil {
		return nil, agentError(client, "list the nodes", err)
	}
	var nodes []*api.Node
	for _, stub := range stubs[:min(len(stubs), maxNodes)] {
		node, _, err := client.Nodes().Info(stub.ID, query)
		if err != nil {
			return nil, agentError(client, "read node "+stub.Name, err)
		}
		nodes = append(nodes, node)
	}
	return refusals(job, nodes, failed), nil
}

// refusals is the pure part of Explain.
func refusals(job *api.Job, nodes []*api.Node, failed map[string]*api.AllocationMetric) []Refusal {
	var all []Refusal
	for _, name := range slices.Sorted(maps.Keys(failed)) {
		refusal := Refusal{Group: name, Others: others(failed[name])}
		if i := slices.IndexFunc(job.TaskGroups, func(g *api.TaskGroup) bool { return *g.Name == name }); i >= 0 {
			for _, node := range nodes {
				if reasons := lacks(job, job.TaskGroups[i], node); len(reasons) > 0 {
					refusal.Nodes = append(refusal.Nodes, NodeRefusal{Node: node.Name, Reasons: reasons})
				}
			}
		}
		all = append(all, refusal)
	}
	return all
}

// lacks says why node can't have an allocation of group, as far as the node's
// own properties tell.
func lacks(job *api.Job, group *api.TaskGroup, node *api.Node) []string {
	switch {
	case node.Status != api.NodeStatusReady:
		return []string{"the node is " + node.Status}
	case node.SchedulingEligibility == api.NodeSchedulingIneligible:
		return []string{"the node is not eligible: nomad node eligibility -enable"}
	}
	var reasons []string
	constraints := slices.Concat(job.Constraints, group.Constraints)
	for _, task := range group.Tasks {
		constraints = append(constraints, task.Constraints...)
		info := node.Drivers[task.Driver]
		switch {
		case info == nil || !info.Detected:
			reasons = append(reasons, fmt.Sprintf("driver %s is not there", task.Driver))
		case !info.Healthy:
			reasons = append(reasons, fmt.Sprintf("driver %s is not healthy: %s", task.Driver, info.HealthDescription))
		}
	}
	for _, constraint := range constraints {
		if reason := violates(constraint, node); reason != "" {
			reasons = append(reasons, reason)
		}
	}
	return reasons
}

// violates says how a node fails a constraint; empty when it doesn't, or when
// only the scheduler can tell.
func violates(constraint *api.Constraint, node *api.Node) string {
	left, leftSet := resolve(constraint.LTarget, node)
	right, rightSet := resolve(constraint.RTarget, node)
	holds, known := compare(constraint.Operand, left, leftSet, right, rightSet)
	if !known || holds {
		return ""
	}
	name := strings.TrimSuffix(strings.TrimPrefix(constraint.LTarget, "${"), "}")
	is := strconv.Quote(left)
	if !leftSet {
		is = "not set"
	}
	return strings.TrimSpace(fmt.Sprintf("%s is %s, want %s %s", name, is, constraint.Operand, right))
}

// resolve gives the value that a target has on a node, as the scheduler does.
func resolve(target string, node *api.Node) (value string, set bool) {
	if !strings.HasPrefix(target, "${") {
		return target, true
	}
	name := strings.TrimSuffix(strings.TrimPrefix(target, "${"), "}")
	switch name {
	case "node.unique.id":
		return node.ID, true
	case "node.unique.name":
		return node.Name, true
	case "node.datacenter":
		return node.Datacenter, true
	case "node.class":
		return node.NodeClass, true
	case "node.pool":
		return node.NodePool, true
	}
	if key, ok := strings.CutPrefix(name, "attr."); ok {
		value, set = node.Attributes[key]
	} else if key, ok := strings.CutPrefix(name, "meta."); ok {
		value, set = node.Meta[key]
	}
	return value, set
}

// compare decides a constraint; known is false for the operands that only the
// scheduler can decide.
func compare(operand, left string, leftSet bool, right string, rightSet bool) (holds, known bool) {
	both := leftSet && rightSet
	switch operand {
	case "=", "==", "is", "":
		return both && left == right, true
	case "!=", "not":
		return left != right || leftSet != rightSet, true
	case "<", "<=", ">", ">=":
		return both && ordered(operand, left, right), true
	case "is_set":
		return leftSet, true
	case "is_not_set":
		return !leftSet, true
	case "regexp":
		pattern, err := regexp.Compile(right)
		return both && err == nil && pattern.MatchString(left), err == nil
	case "version", "semver":
		wanted, err := version.NewConstraint(right)
		if err != nil {
			return false, false
		}
		found, err := version.NewVersion(left)
		return both && err == nil && wanted.Check(found), true
	case "set_contains", "set_contains_all":
		return both && contains(left, right, true), true
	case "set_contains_any":
		return both && contains(left, right, false), true
	default:
		return false, false
	}
}

// ordered compares whole numbers, else fractions, else text.
func ordered(operand, left, right string) bool {
	order := strings.Compare(left, right)
	if l, err := strconv.ParseFloat(left, 64); err == nil {
		if r, err := strconv.ParseFloat(right, 64); err == nil {
			order = 0
			switch {
			case l < r:
				order = -1
			case l > r:
				order = 1
			}
		}
	}
	switch operand {
	case "<":
		return order < 0
	case "<=":
		return order <= 0
	case ">":
		return order > 0
	default:
		return order >= 0
	}
}

// contains compares comma-separated sets.
func contains(left, right string, all bool) bool {
	split := func(text string) []string {
		parts := strings.Split(text, ",")
		for i := range parts {
			parts[i] = strings.TrimSpace(parts[i])
		}
		return parts
	}
	has := split(left)
	for _, wanted := range split(right) {
		if found := slices.Contains(has, wanted); found != all {
			return found
		}
	}
	return all
}

// others are the scheduler's findings, in its words.
func others(metric *api.AllocationMetric) []string {
	var found []string
	if metric.NodesEvaluated == 0 {
		found = append(found, "no node is in the job's datacenters and node pool")
	}
	count := func(format string, counts map[string]int) {
		for _, key := range slices.Sorted(maps.Keys(counts)) {
			found = append(found, fmt.Sprintf(format, key, counts[key]))
		}
	}
	count("constraint %q refuses %d node(s)", metric.ConstraintFiltered)
	count("node class %q refuses %d node(s)", metric.ClassFiltered)
	count("resources exhausted: %s on %d node(s)", metric.DimensionExhausted)
	for _, quota := range metric.QuotaExhausted {
		found = append(found, "quota exhausted: "+quota)
	}
	return found
}
