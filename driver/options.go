package driver

import (
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/hashicorp/nomad/plugins/shared/hclspec"
)

// kind is how the value of a provider's key is written.
type kind int

const (
	kindText   kind = iota
	kindNumber      // a whole number or a fraction
	kindBool
	kindList   // of strings
	kindMap    // of strings
	kindLabels // blocks with a label: `host "a" { … }`
)

// key is one key of a provider block.
type key struct {
	name string
	kind kind
	keys []key // of kindLabels
}

// providerKeys is the union of the keys of all provider types: HCL can't choose
// a schema by the value of `type`. Which of them a type takes, and which it
// needs, is its adapter's to say (provider.DecodeOptions refuses the others).
var providerKeys = slices.Concat(
	keys(kindText, "type"),
	// process
	keys(kindList, "allow_clients", "allow_targets"),
	keys(kindBool, "command"),
	keys(kindText, "idle_timeout", "max_duration", "user"),
	keys(kindNumber, "log_max_mib"),
	// kvm
	[]key{
		{name: "host", kind: kindLabels, keys: slices.Concat(
			keys(kindText, "address", "user", "socket", "pool", "network", "virt_type", "cpu_mode", "key_file",
				"known_hosts_file"),
			keys(kindBool, "insecure_host_key"),
		)},
		{name: "image", kind: kindLabels, keys: keys(kindText, "url", "sha256", "sha512", "format", "firmware")},
		{name: "machine_type", kind: kindLabels, keys: keys(kindNumber, "cores", "memory_mib", "disk_mib")},
	},
	keys(kindText, "default_image", "default_machine_type", "vendor_data_file", "handshake_timeout", "keepalive"),
	keys(kindList, "image_dirs"),
	keys(kindBool, "image_urls", "guest_agent"),
	keys(kindNumber, "disk_mib"),
	// gcp
	keys(kindText, "project", "credentials_file", "endpoint", "network", "subnetwork", "client_address", "disk_type",
		"service_account", "provisioning", "on_preemption", "user_data_key", "call_timeout"),
	keys(kindList, "zones", "network_tags", "scopes"),
	keys(kindBool, "external_address"),
	[]key{{name: "labels", kind: kindMap}},
	// kube
	keys(kindText, "kubeconfig", "context", "namespace", "image_pull_policy", "pending_timeout", "delete_timeout"),
	keys(kindList, "image_pull_secrets", "tolerations"),
	[]key{{name: "node_selector", kind: kindMap}, {name: "annotations", kind: kindMap}},
	keys(kindBool, "host_network", "squid"),
	keys(kindNumber, "run_as_user", "max_file_descriptors"),
)

func keys(kind kind, names ...string) []key {
	list := make([]key, 0, len(names))
	for _, name := range names {
		list = append(list, key{name: name, kind: kind})
	}
	return list
}

// providerSpec is the HCL schema of keys.
func providerSpec(keys []key) map[string]*hclspec.Spec {
	specs := make(map[string]*hclspec.Spec, len(keys))
	for _, key := range keys {
		switch key.kind {
		case kindList:
			specs[key.name] = list(key.name)
		case kindMap:
			specs[key.name] = hclspec.NewBlockAttrs(key.name, "string", false)
		case kindLabels:
			specs[key.name] = hclspec.NewBlockMap(key.name, []string{"name"}, hclspec.NewObject(providerSpec(key.keys)))
		default:
			specs[key.name] = text(key.name)
		}
	}
	return specs
}

// options turns a decoded block into what an adapter decodes: a value of the
// key's own type, nothing for a key that was not given. A labelled block is a
// map by label under the block's name.
func options(block map[string]any, keys []key, problems *problems) map[string]any {
	result := make(map[string]any)
	for _, key := range keys {
		raw, given := block[key.name]
		if !given || raw == nil {
			continue
		}
		if value, ok := option(raw, key, problems); ok {
			result[key.name] = value
		}
	}
	return result
}

func option(raw any, key key, problems *problems) (value any, ok bool) {
	switch raw := raw.(type) {
	case string:
		value, err := scalar(raw, key.kind)
		if err != nil {
			problems.add(key.name, raw, err.Error())
		}
		return value, err == nil
	case []any:
		texts := make([]string, 0, len(raw))
		for _, element := range raw {
			texts = append(texts, fmt.Sprint(element))
		}
		return texts, true
	case map[string]any:
		if key.kind != kindLabels {
			return raw, len(raw) > 0
		}
		labelled := make(map[string]any, len(raw))
		for _, label := range slices.Sorted(maps.Keys(raw)) {
			inner, _ := raw[label].(map[string]any)
			labelled[label] = options(inner, key.keys, problems.in(fmt.Sprintf("%s %q", key.name, label)))
		}
		return labelled, len(labelled) > 0
	default:
		problems.add(key.name, fmt.Sprint(raw), "want a value")
		return nil, false
	}
}

// scalar parses a single value; the error says what is expected.
func scalar(raw string, kind kind) (any, error) {
	switch kind {
	case kindBool:
		switch raw {
		case "true":
			return true, nil
		case "false":
			return false, nil
		}
		return nil, fmt.Errorf("want true or false")
	case kindNumber:
		if whole, err := strconv.ParseInt(raw, 10, 64); err == nil {
			return whole, nil
		}
		if number, err := strconv.ParseFloat(raw, 64); err == nil {
			return number, nil
		}
		return nil, fmt.Errorf("want a number")
	default:
		return raw, nil
	}
}
