// Package driver is the Nomad task driver "egress": a task is one egress
// proxy, launched by a provider, proven by a probe and registered in Consul.
package driver

import (
	"github.com/hashicorp/nomad/plugins/base"
	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/hashicorp/nomad/plugins/shared/hclspec"
)

// Name is the name of the driver: `driver = "egress"` in a job, `plugin
// "egress"` in an agent's configuration.
const Name = "egress"

// capabilities says what the driver can do. A proxy has an address of its own
// or listens on the node's, so that only Nomad's host networking fits, and
// nothing can be mounted into it.
var capabilities = &drivers.Capabilities{
	SendSignals:       true,
	Exec:              true,
	FSIsolation:       drivers.FSIsolationNone,
	NetIsolationModes: []drivers.NetIsolationMode{drivers.NetIsolationModeHost},
	MountConfigs:      drivers.MountConfigSupportNone,
}

// pluginInfo describes the plugin to the agent.
func pluginInfo(version string) *base.PluginInfoResponse {
	return &base.PluginInfoResponse{
		Type:              base.PluginTypeDriver,
		PluginApiVersions: []string{drivers.ApiVersion010},
		PluginVersion:     version,
		Name:              Name,
	}
}

// Every single value is declared as a string, to which HCL converts numbers and
// booleans, and is parsed here: Nomad's own message for a wrong type names
// neither the value nor the block that it stands in.

// configSpec is the schema of `plugin "egress" { config { … } }`.
var configSpec = hclspec.NewObject(map[string]*hclspec.Spec{
	"cluster":          text("cluster"),
	"state_dir":        text("state_dir"),
	"start_timeout":    text("start_timeout"),
	"credentials_file": text("credentials_file"),
	"consul": block("consul", texts("enabled", "address", "token", "token_file", "ca_file", "service",
		"target_service", "deregister_after")),
	"metrics":     block("metrics", texts("address")),
	"fingerprint": block("fingerprint", texts("interval", "timeout")),
	"nomad":       block("nomad", texts("address", "token")),
	"probe":       block("probe", probeSpec("")),
	"provider":    hclspec.NewBlockMap("provider", []string{"name"}, hclspec.NewObject(providerSpec(providerKeys))),
})

// taskConfigSpec is the schema of a task's `config { … }`.
var taskConfigSpec = hclspec.NewObject(map[string]*hclspec.Spec{
	"provider":       text("provider"),
	"zone":           text("zone"),
	"machine_type":   text("machine_type"),
	"image":          text("image"),
	"port":           text("port"),
	"command":        text("command"),
	"args":           list("args"),
	"bind":           text("bind"),
	"user_data":      text("user_data"),
	"user_data_file": text("user_data_file"),
	"network_config": text("network_config"),
	"endpoint":       block("endpoint", texts("host", "port")),
	"auth":           block("auth", texts("name", "username", "password")),
	"probe":          block("probe", probeSpec("enabled")),
	"service": block("service", merge(texts("enabled", "name"), map[string]*hclspec.Spec{
		"tags": list("tags"),
	})),
	"attributes":    hclspec.NewBlockAttrs("attributes", "string", false),
	"max_leases":    text("max_leases"),
	"drain":         text("drain"),
	"start_timeout": text("start_timeout"),
})

// probeSpec is the probe block, which the plugin has as the tasks' default; a
// task has the key extra besides.
func probeSpec(extra string) map[string]*hclspec.Spec {
	specs := texts("interval", "timeout", "successes", "failures", "ca_file", "exit_ip_url")
	specs["urls"] = list("urls")
	if extra != "" {
		specs[extra] = text(extra)
	}
	return specs
}

func text(name string) *hclspec.Spec { return hclspec.NewAttr(name, "string", false) }
func list(name string) *hclspec.Spec { return hclspec.NewAttr(name, "list(string)", false) }

func texts(names ...string) map[string]*hclspec.Spec {
	specs := make(map[string]*hclspec.Spec, len(names))
	for _, name := range names {
		specs[name] = text(name)
	}
	return specs
}

func block(name string, attributes map[string]*hclspec.Spec) *hclspec.Spec {
	return hclspec.NewBlock(name, false, hclspec.NewObject(attributes))
}

func merge(into, from map[string]*hclspec.Spec) map[string]*hclspec.Spec {
	for name, spec := range from {
		into[name] = spec
	}
	return into
}
