package kube

import (
	"os"
	"slices"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/client-go/kubernetes/scheme"
)

// e2e/kubernetes runs the provider with this very role.
func TestRoleGivesWhatTheCheckAsksFor(t *testing.T) {
	text, err := os.ReadFile("../../docs/kubernetes-role.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var role *rbacv1.Role
	for document := range strings.SplitSeq(string(text), "\n---\n") {
		object, _, err := scheme.Codecs.UniversalDeserializer().Decode([]byte(document), nil, nil)
		if err != nil {
			t.Fatalf("%v in:\n%s", err, document)
		}
		if found, ok := object.(*rbacv1.Role); ok {
			role = found
		}
	}
	if role == nil {
		t.Fatal("there is no Role")
	}
	for _, right := range rights {
		resource := strings.TrimSuffix(right.resource+"/"+right.subresource, "/")
		if !slices.ContainsFunc(role.Rules, func(rule rbacv1.PolicyRule) bool {
			return slices.Contains(rule.APIGroups, "") && slices.Contains(rule.Resources, resource) && slices.Contains(rule.Verbs, right.verb)
		}) {
			t.Errorf("the role lacks %s %s", right.verb, resource)
		}
	}
	for _, rule := range role.Rules {
		if slices.Contains(rule.Verbs, "*") || slices.Contains(rule.Resources, "*") || slices.Contains(rule.APIGroups, "*") {
			t.Errorf("%v gives more than is needed", rule)
		}
	}
}
