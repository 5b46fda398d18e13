package kvm

import (
	"os"
	"path/filepath"

	"github.com/egress-proxies/egress/provider"
)

// placements remember on which host an instance is being made, from before the
// first step: the next attempt, perhaps of another process, must look there,
// even when that host is the one that can't be reached. An allocation belongs
// to one Nomad node, so a file there is all that is needed.
type placements struct{ dir string }

func (p placements) path(name string) string { return filepath.Join(p.dir, "placement", name) }

// read gives the host's name, or empty when there is none.
func (p placements) read(name string) string {
	if p.dir == "" {
		return ""
	}
	content, err := os.ReadFile(p.path(name))
	if err != nil {
		return ""
	}
	return string(content)
}

// write notes the host. A file that is cut off names no host and is as good as
// none, so it is renamed into place.
func (p placements) write(name, host string) error {
	if p.dir == "" {
		return nil
	}
	path := p.path(name)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return provider.Transientf("state_dir: %w", err)
	}
	if err := os.WriteFile(path+".new", []byte(host), 0o600); err != nil {
		return provider.Transientf("state_dir: %w", err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		return provider.Transientf("state_dir: %w", err)
	}
	return nil
}

// remove forgets. A file that stays costs a look at its host, no more.
func (p placements) remove(name string) {
	if p.dir != "" {
		_ = os.Remove(p.path(name))
	}
}
