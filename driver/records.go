package driver

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/egress-proxies/egress/provider"
)

// record says on disk, for as long as an instance may exist, who made it and
// where. It lets a plugin that was restarted tell the invocation it must adopt
// from one that it must redo, delete by the task id alone without asking every
// provider, and go on deleting what could not be deleted. It holds no secret.
type record struct {
	// TaskID is the invocation that made the instance.
	TaskID string `json:"task_id"`
	// Provider made it; empty is "any of them".
	Provider string `json:"provider"`
	// Ref is where it is; without a zone before Create returned.
	Ref provider.Ref `json:"ref"`
	// Namespace is that of the task's job; it is asked for whether it lives.
	Namespace string `json:"namespace,omitempty"`
	// Node is the Nomad node's id.
	Node string `json:"node"`
	// Orphan is true when nobody wants the instance and deleting it failed.
	Orphan bool `json:"orphan,omitempty"`
}

// records are the records of this node, one file each.
type records struct {
	dir string
}

func (r records) path(name string) string { return filepath.Join(r.dir, name+".json") }

// read is ok when there is a record of the name. One that can't be read counts
// as none: the instance is then looked for at every provider.
func (r records) read(name string) (found record, ok bool) {
	content, err := os.ReadFile(r.path(name))
	if err != nil {
		return record{}, false
	}
	if err := json.Unmarshal(content, &found); err != nil || found.Ref.Name != name {
		return record{}, false
	}
	return found, true
}

// write replaces the record at once, so that a crash leaves the old or the new.
func (r records) write(record record) error {
	content, err := json.Marshal(record)
	if err != nil {
		return err
	}
	if err := replaceFile(r.path(record.Ref.Name), content); err != nil {
		return fmt.Errorf("state_dir: %w", err)
	}
	return nil
}

func (r records) remove(name string) error {
	if err := os.Remove(r.path(name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("state_dir: %w", err)
	}
	return nil
}

// all are the readable records.
func (r records) all() []record {
	entries, err := os.ReadDir(r.dir)
	if err != nil {
		return nil // none was written yet, or write will say why not
	}
	list := make([]record, 0, len(entries))
	for _, entry := range entries {
		name, isRecord := strings.CutSuffix(entry.Name(), ".json")
		if found, ok := r.read(name); isRecord && ok {
			list = append(list, found)
		}
	}
	return list
}

// node is the id of this node, which every record has; empty without one.
func (r records) node() string {
	for _, found := range r.all() {
		if found.Node != "" {
			return found.Node
		}
	}
	return ""
}

// replaceFile writes a file of mode 0600 in place of what is there, and makes
// its directory.
func replaceFile(path string, content []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	temporary, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*.tmp")
	if err != nil {
		return err
	}
	_, err = temporary.Write(content)
	err = errors.Join(err, temporary.Close())
	if err == nil {
		err = os.Rename(temporary.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(temporary.Name()))
	}
	return nil
}
