package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// Server finds the program of a server that the project builds, "nomad" or
// "consul": what the variable (EGRESS_NOMAD_BIN) says, else what `make servers`
// has left in the cache (EGRESS_CACHE, ~/.cache/egress).
func Server(name, variable string) (string, error) {
	path := os.Getenv(variable)
	if path == "" {
		cache := os.Getenv("EGRESS_CACHE")
		if cache == "" {
			home, err := os.UserHomeDir()
			if err != nil {
				return "", err
			}
			cache = filepath.Join(home, ".cache", "egress")
		}
		path = filepath.Join(cache, "bin", name)
	}
	if _, err := os.Stat(path); err != nil {
		return "", fmt.Errorf("no %s program: %w: run `make servers` or set %s", name, err, variable)
	}
	return path, nil
}

// Servers fills in the programs of both servers.
func (c *Config) Servers() (err error) {
	nomad, nomadErr := Server("nomad", "EGRESS_NOMAD_BIN")
	consul, consulErr := Server("consul", "EGRESS_CONSUL_BIN")
	c.NomadBin, c.ConsulBin = nomad, consul
	return errors.Join(nomadErr, consulErr)
}

// BuildPlugin builds the project's program into dir, with the race detector if
// wanted, and returns its path. The working directory must be in the project.
func BuildPlugin(ctx context.Context, dir string, race bool) (string, error) {
	out := filepath.Join(dir, "egress")
	args := []string{"build", "-o", out}
	if race {
		args = append(args, "-race")
	}
	cmd := exec.CommandContext(ctx, "go", append(args, "github.com/egress-proxies/egress")...)
	if text, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the plugin: %w\n%s", err, bytes.TrimSpace(text))
	}
	return out, nil
}
