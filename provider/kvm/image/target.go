// Package image keeps the images that machines boot from in the storage pools
// of the hosts, each fetched once and named by its content.
package image

import (
	"context"
	"errors"
	"io"
	"time"
)

// ErrVolumeExists is in the error of Target.Create when the name is taken:
// somebody else, perhaps on another Nomad node, was first.
var ErrVolumeExists = errors.New("volume exists")

// Target is one storage pool on one host, as much of it as images need.
// provider/kvm implements it on libvirt. Errors carry a class of package
// provider; every method returns promptly when ctx ends. A pool is a directory
// of files: a volume is a file in it.
type Target interface {
	// String names the host and the pool for messages: "a/default". It is
	// unique among the targets of one provider.
	String() string
	// Lookup finds a volume by its name, or gives provider.ErrNotFound.
	Lookup(ctx context.Context, name string) (Volume, error)
	// Create makes a volume. One that exists already is an error that wraps
	// ErrVolumeExists.
	Create(ctx context.Context, v NewVolume) (Volume, error)
	// Upload writes r over the volume from its first byte until io.EOF and
	// grows the file as needed. Runs of zeros are not sent: they become holes.
	// It returns nil only when the host confirmed that all of it was taken.
	Upload(ctx context.Context, name string, r io.Reader) error
	// Delete removes a volume; gone is success.
	Delete(ctx context.Context, name string) error
	// List gives the volumes whose names start with prefix.
	List(ctx context.Context, prefix string) ([]Volume, error)
}

// Volume is a file in a pool.
type Volume struct {
	// Name is the file's name within the pool.
	Name string
	// Path is the absolute path on the host.
	Path string
	// Format is what libvirt takes the file for: "qcow2", "raw", "iso".
	Format string
	// Capacity is the size that a guest sees, in bytes.
	Capacity int64
	// Allocation is what the file occupies on the host, in bytes.
	Allocation int64
	// Backing is the path of the file below a qcow2 overlay, or empty.
	Backing string
	// ModifiedAt is when the file was last written; zero when unknown.
	ModifiedAt time.Time
}

// NewVolume describes a volume to create.
type NewVolume struct {
	// Name is the file's name within the pool.
	Name string
	// Format is "raw" (the default) or "qcow2".
	Format string
	// Capacity is the size that a guest sees, in bytes; 0 is an empty file
	// that Upload grows.
	Capacity int64
	// Backing is the path of the file below a qcow2 overlay, or empty.
	Backing string
	// BackingFormat is the format of Backing.
	BackingFormat string
}
