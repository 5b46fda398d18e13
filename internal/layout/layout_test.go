package layout_test

import (
	"bufio"
	"bytes"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/egress-proxies/egress"

// rules say what a package may import of this module, and of the worlds that
// it must not know. The longest matching prefix of the package's path wins.
var rules = []struct {
	prefix string
	local  []string // allowed prefixes beside the package's own tree
	banned []string // prefixes of anything, direct or not
}{
	{prefix: "provider", local: []string{"internal"},
		banned: []string{"github.com/hashicorp/nomad", "github.com/hashicorp/consul", "github.com/digitalocean/go-libvirt",
			"cloud.google.com/go", "k8s.io"}},
	{prefix: "provider/fake", local: []string{"provider"}},
	{prefix: "provider/providertest", local: []string{"provider"}},
	{prefix: "provider/process", local: []string{"provider", "internal"}, banned: sdks("")},
	{prefix: "provider/external", local: []string{"provider", "internal"}, banned: sdks("")},
	{prefix: "provider/kvm", local: []string{"provider", "internal"}, banned: sdks("github.com/digitalocean/go-libvirt")},
	{prefix: "provider/gcp", local: []string{"provider", "internal"}, banned: sdks("cloud.google.com/go")},
	{prefix: "provider/kube", local: []string{"provider", "internal"}, banned: sdks("k8s.io")},
	{prefix: "fingerprint", local: []string{"provider", "internal"},
		banned: append(sdks(""), "github.com/hashicorp/nomad/plugins", "github.com/hashicorp/consul")},
	{prefix: "driver", local: []string{"provider", "fingerprint", "internal"}, banned: sdks("")},
	{prefix: "driver/probe", local: []string{"internal"}},
	{prefix: "driver/registry", local: []string{"driver/probe", "internal"}},
	{prefix: "lease", local: []string{"internal"}, banned: []string{"github.com/hashicorp/nomad", "github.com/hashicorp/consul"}},
	{prefix: "lease/api", local: nil},
	{prefix: "lease/http", local: []string{"lease", "lease/api", "internal"}, banned: []string{"github.com/hashicorp/consul"}},
	{prefix: "lease/client", local: []string{"lease/api", "internal"}, banned: []string{"github.com/hashicorp/consul"}},
	{prefix: "lease/consul", local: []string{"lease", "internal"}},
	{prefix: "lease/leasetest", local: []string{"lease", "internal"}},
	{prefix: "lease/command", local: []string{"lease", "internal"}},
	{prefix: "jobs", local: []string{"internal"}},
	{prefix: "internal", local: nil},
}

// sdks are the clients of the places, less the one that an adapter is for.
func sdks(own string) []string {
	all := []string{"github.com/digitalocean/go-libvirt", "cloud.google.com/go", "k8s.io"}
	return slices.DeleteFunc(all, func(sdk string) bool { return sdk == own })
}

// exact packages may be imported by their path only, not by their tree: the
// adapters of provider, the parts of lease.
var exact = map[string]bool{"provider": true, "lease": true, "lease/api": true}

func within(path, prefix string) bool { return path == prefix || strings.HasPrefix(path, prefix+"/") }

func TestImportDirections(t *testing.T) {
	imports := list(t, "{{.ImportPath}} {{join .Imports \" \"}}")
	deps := list(t, "{{.ImportPath}} {{join .Deps \" \"}}")
	if len(imports) < 10 {
		t.Fatalf("only %d packages were found: %v", len(imports), imports)
	}
	for path, imported := range imports {
		local := strings.TrimPrefix(strings.TrimPrefix(path, module), "/")
		rule := -1
		for i := range rules {
			if within(local, rules[i].prefix) && (rule < 0 || len(rules[i].prefix) > len(rules[rule].prefix)) {
				rule = i
			}
		}
		if rule < 0 {
			continue // main and e2e import whatever they like
		}
		for _, other := range imported {
			other, ours := strings.CutPrefix(other, module+"/")
			if ours && !allowed(local, other, rule) {
				t.Errorf("%s imports %s, which docs/architecture.md doesn't allow", local, other)
			}
		}
		for _, dep := range deps[path] {
			for _, banned := range rules[rule].banned {
				if within(dep, banned) {
					t.Errorf("%s depends on %s, a world that it must not know", local, dep)
				}
			}
		}
	}
}

func allowed(local, other string, rule int) bool {
	own := rules[rule].prefix
	if within(other, own) && longestRule(other) == own {
		return true
	}
	for _, prefix := range rules[rule].local {
		// A command ties the parts of its area together.
		if exact[prefix] && !strings.HasSuffix(own, "/command") {
			if other == prefix {
				return true
			}
		} else if within(other, prefix) {
			return true
		}
	}
	// The driver is the one that ties its own parts together.
	return own == "driver" && within(other, "driver")
}

// longestRule is the prefix of the rule that governs a package.
func longestRule(local string) string {
	longest := ""
	for _, rule := range rules {
		if within(local, rule.prefix) && len(rule.prefix) > len(longest) {
			longest = rule.prefix
		}
	}
	return longest
}

// list runs go list over the module; each line is a package and its words.
func list(t *testing.T, format string) map[string][]string {
	t.Helper()
	command := exec.Command("go", "list", "-f", format, module+"/...")
	command.Env = append(os.Environ(), "GOFLAGS=-buildvcs=false")
	var stderr bytes.Buffer
	command.Stderr = &stderr
	out, err := command.Output()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, stderr.String())
	}
	result := make(map[string][]string)
	scanner := bufio.NewScanner(bytes.NewReader(out))
	scanner.Buffer(nil, 1<<20)
	for scanner.Scan() {
		words := strings.Fields(scanner.Text())
		result[words[0]] = words[1:]
	}
	return result
}
