package driver

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/hashicorp/hcl"
	"github.com/hashicorp/nomad/helper/pluginutils/hclspecutils"
	"github.com/hashicorp/nomad/helper/pluginutils/hclutils"
	"github.com/hashicorp/nomad/plugins/shared/hclspec"
	"github.com/zclconf/go-cty/cty/msgpack"
)

// LoadConfig reads the plugin's configuration from where the Nomad agent has
// it: files, or directories with *.hcl and *.json, of which one has a plugin
// "egress" block, or is the content of that block's config. It is for the
// commands, which stand beside the agent.
func LoadConfig(paths ...string) (Config, error) {
	files, err := configFiles(paths)
	if err != nil {
		return Config{}, err
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return Config{}, err
		}
		config, found, err := parseAgentConfig(string(text))
		if err != nil {
			return Config{}, fmt.Errorf("%s: %w", file, err)
		}
		if found {
			return config, nil
		}
	}
	return Config{}, fmt.Errorf(`no plugin %q block in %s`, Name, strings.Join(paths, ", "))
}

// configFiles lists the files of paths in the order in which the agent reads them.
func configFiles(paths []string) ([]string, error) {
	var files []string
	for _, path := range paths {
		info, err := os.Stat(path)
		if errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("%s: no such file: want the Nomad agent's configuration file or directory", path)
		}
		if err != nil {
			return nil, err
		}
		if !info.IsDir() {
			files = append(files, path)
			continue
		}
		entries, err := os.ReadDir(path)
		if err != nil {
			return nil, err
		}
		for _, entry := range entries {
			if extension := filepath.Ext(entry.Name()); extension == ".hcl" || extension == ".json" {
				files = append(files, filepath.Join(path, entry.Name()))
			}
		}
	}
	return files, nil
}

// parseAgentConfig decodes the plugin's block the way the agent does: HCL 1
// into maps, these by the schema.
func parseAgentConfig(text string) (config Config, found bool, err error) {
	var file struct {
		Plugins []struct {
			Name   string         `hcl:",key"`
			Config map[string]any `hcl:"config"`
		} `hcl:"plugin,expand"`
	}
	if err := hcl.Decode(&file, text); err != nil {
		return Config{}, false, err
	}
	for _, plugin := range file.Plugins {
		if plugin.Name != Name {
			continue
		}
		packed, err := pack(plugin.Config, configSpec)
		if err != nil {
			return Config{}, true, fmt.Errorf("plugin %q: %w", Name, err)
		}
		config, err := decodeConfig(packed)
		return config, true, err
	}
	return parseBare(text)
}

// parseBare decodes a file with only what stands in config { … }, by which a
// provider is tried before any agent knows of it. No key of an agent's own is
// named provider.
func parseBare(text string) (config Config, found bool, err error) {
	var body map[string]any
	if err := hcl.Decode(&body, text); err != nil {
		return Config{}, false, err
	}
	if body["provider"] == nil {
		return Config{}, false, nil
	}
	packed, err := pack(body, configSpec)
	if err != nil {
		return Config{}, true, err
	}
	config, err = decodeConfig(packed)
	return config, true, err
}

// pack encodes a value by a schema, as the agent does for SetConfig.
func pack(value map[string]any, schema *hclspec.Spec) ([]byte, error) {
	spec, diagnostics := hclspecutils.Convert(schema)
	if diagnostics.HasErrors() {
		return nil, diagnostics
	}
	if value == nil {
		value = map[string]any{}
	}
	decoded, diagnostics, problems := hclutils.ParseHclInterface(value, spec, nil)
	if diagnostics.HasErrors() {
		return nil, errors.New(oneLine(errors.Join(problems...)))
	}
	return msgpack.Marshal(decoded, decoded.Type())
}
