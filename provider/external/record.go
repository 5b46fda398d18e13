package external

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/egress-proxies/egress/provider"
)

// record is the file of one instance. Credentials are not part of it: whoever
// uses the endpoint has them from where they are kept.
type record struct {
	Host      string          `json:"host"`
	Port      int             `json:"port"`
	Labels    provider.Labels `json:"labels"`
	CreatedAt time.Time       `json:"created_at"`
}

const (
	extension = ".json"
	temporary = ".new-"
)

// instance describes a record. The address stays a name when it was given as
// one: what it resolves to may change, and TLS to a proxy needs the name.
func (r record) instance(name string) provider.Instance {
	host := r.Host
	if addr, err := netip.ParseAddr(host); err == nil {
		host = addr.Unmap().String()
	}
	return provider.Instance{
		Ref:       provider.Ref{Name: name, Zone: Zone},
		ID:        fmt.Sprintf("endpoint %s port %d", r.Host, r.Port),
		State:     provider.Running,
		Address:   host,
		Addresses: []string{host},
		Port:      r.Port,
		Labels:    r.Labels,
		CreatedAt: r.CreatedAt,
	}
}

var errRecord = errors.New("the record can't be decoded")

func read(path string) (record, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return record{}, err
	}
	var known record
	if err := json.Unmarshal(content, &known); err != nil {
		return record{}, fmt.Errorf("%s: %w: %w", path, errRecord, err)
	}
	return known, nil
}

// write replaces the record so that a reader sees the old one or the new one,
// also after a power cut.
func write(path string, made record) error {
	content, err := json.Marshal(made)
	if err != nil {
		return err
	}
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	temp, err := os.CreateTemp(dir, temporary+strings.TrimSuffix(filepath.Base(path), extension)+".")
	if err != nil {
		return err
	}
	_, err = temp.Write(content)
	if err == nil {
		err = temp.Sync()
	}
	err = errors.Join(err, temp.Close())
	if err == nil {
		err = os.Rename(temp.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(temp.Name()))
	}
	opened, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(opened.Sync(), opened.Close())
}
