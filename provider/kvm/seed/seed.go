// Package seed builds the disk from which cloud-init configures a guest: an ISO
// 9660 image labelled cidata, the NoCloud data source.
package seed

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/kdomanski/iso9660"
)

// Label is the volume label by which cloud-init finds the disk.
const Label = "cidata"

// Data is what a guest is told.
type Data struct {
	// InstanceID is required. cloud-init runs its once-only steps again when
	// it changes, so it must stay the same over a guest's reboots.
	InstanceID string
	// Hostname is required: cloud-init would name the guest "localhost".
	Hostname string
	// UserData reaches the guest byte for byte, in whatever format it is.
	UserData []byte
	// NetworkConfig is cloud-init's network-config; without one cloud-init
	// asks for an address by DHCP on the first card.
	NetworkConfig []byte
	// VendorData is what the operator gives to every guest. cloud-init lets
	// the user-data override it key by key.
	VendorData []byte
	// GuestAgent installs and starts the QEMU guest agent where the image has
	// none, beside whatever VendorData does.
	GuestAgent bool
}

// String names the guest alone, since every other field may hold secrets.
func (d Data) String() string { return "seed of " + d.InstanceID }

// GoString is String, for %#v.
func (d Data) GoString() string { return d.String() }

// Build writes the image to w. What it writes depends on d and the time only.
func Build(w io.Writer, d Data) (err error) {
	files, err := d.files()
	if err != nil {
		return err
	}
	image, err := iso9660.NewWriter()
	if err != nil {
		return fmt.Errorf("seed: staging directory: %w", err)
	}
	// The library stages the files on disk, secrets included: a cleanup that
	// fails must not pass unseen.
	defer func() { err = errors.Join(err, image.Cleanup()) }()
	for _, f := range files {
		if err := image.AddFile(bytes.NewReader(f.content), f.name); err != nil {
			return fmt.Errorf("seed: %s: %w", f.name, err)
		}
	}
	if err := image.WriteTo(w, Label); err != nil {
		return fmt.Errorf("seed: %w", err)
	}
	return nil
}

type file struct {
	name    string
	content []byte
}

// files are those that the NoCloud source reads. It wants meta-data and
// user-data to exist, even if empty, or takes the disk for somebody else's.
func (d Data) files() ([]file, error) {
	meta, err := d.metaData()
	if err != nil {
		return nil, err
	}
	vendor, err := d.vendorData()
	if err != nil {
		return nil, err
	}
	files := []file{{"meta-data", meta}, {"user-data", d.UserData}}
	if len(vendor) > 0 {
		files = append(files, file{"vendor-data", vendor})
	}
	if len(d.NetworkConfig) > 0 {
		files = append(files, file{"network-config", d.NetworkConfig})
	}
	return files, nil
}

// metaData is YAML of which JSON is a subset, so that no value needs quoting
// rules of our own.
func (d Data) metaData() ([]byte, error) {
	if d.InstanceID == "" || d.Hostname == "" {
		return nil, fmt.Errorf("seed: instance id %q and host name %q: want both", d.InstanceID, d.Hostname)
	}
	meta, err := json.MarshalIndent(struct {
		InstanceID    string `json:"instance-id"`
		LocalHostname string `json:"local-hostname"`
	}{d.InstanceID, d.Hostname}, "", " ")
	return append(meta, '\n'), err
}
