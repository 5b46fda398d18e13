package virt

import (
	"bytes"
	"context"
	"encoding/xml"
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/digitalocean/go-libvirt"

	"github.com/egress-proxies/egress/provider"
)

// Pool is a storage pool.
type Pool struct {
	// Name of the pool.
	Name string
	// Active is false for one that is not started.
	Active bool
	// Type is libvirt's: "dir", "fs", "netfs", "logical", …
	Type string
	// Path is the directory of its files.
	Path string
	// Capacity and Available are in bytes.
	Capacity, Available uint64
}

func (h *Host) pool(ctx context.Context, name string) (libvirt.StoragePool, error) {
	return ask(ctx, h, "StoragePoolLookupByName", []any{"pool", name}, func(l *libvirt.Libvirt) (libvirt.StoragePool, error) {
		return l.StoragePoolLookupByName(name)
	})
}

// Pool describes a pool. With fresh, libvirt looks at the disk first: it
// otherwise tells what was free when it last looked, and guests write since.
func (h *Host) Pool(ctx context.Context, name string, fresh bool) (Pool, error) {
	raw, err := h.pool(ctx, name)
	if err != nil {
		return Pool{}, err
	}
	given := []any{"pool", name}
	read := func() (Pool, error) {
		return ask(ctx, h, "StoragePoolGetInfo", given, func(l *libvirt.Libvirt) (Pool, error) {
			state, capacity, _, available, err := l.StoragePoolGetInfo(raw)
			active := libvirt.StoragePoolState(state)
			return Pool{
				Name: name, Active: active == libvirt.StoragePoolRunning || active == libvirt.StoragePoolDegraded,
				Capacity: capacity, Available: available,
			}, err
		})
	}
	pool, err := read()
	if err != nil {
		return Pool{}, err
	}
	if fresh && pool.Active {
		// A pool in which a volume is being made can't be refreshed just now:
		// the last known numbers must do.
		err := h.call(ctx, "StoragePoolRefresh", given, func(l *libvirt.Libvirt) error {
			return l.StoragePoolRefresh(raw, 0)
		})
		var again Pool
		if err == nil {
			again, err = read()
		}
		if err == nil {
			pool = again
		}
		denied := Is(err, libvirt.ErrOperationDenied) || Is(err, libvirt.ErrAccessDenied)
		if err != nil && (CodeName(err) == "" || denied) {
			return Pool{}, err
		}
	}
	document, err := ask(ctx, h, "StoragePoolGetXMLDesc", given, func(l *libvirt.Libvirt) (string, error) {
		return l.StoragePoolGetXMLDesc(raw, 0)
	})
	if err != nil {
		return Pool{}, err
	}
	h.traceXML("StoragePoolGetXMLDesc", document)
	var parsed struct {
		Type string `xml:"type,attr"`
		Path string `xml:"target>path"`
	}
	if err := xml.Unmarshal([]byte(document), &parsed); err != nil {
		return Pool{}, provider.Transientf("host %s: pool %s: %w", h.options.Name, name, err)
	}
	pool.Type, pool.Path = parsed.Type, parsed.Path
	return pool, nil
}

// Volume is a file in a pool.
type Volume struct {
	// Name is the file's name within the pool.
	Name string
	// Path is the absolute path on the host.
	Path string
	// Format is what libvirt takes the file for.
	Format string
	// Capacity is the size that a guest sees, Allocation what the file
	// occupies, in bytes.
	Capacity, Allocation int64
	// Backing is the path of the file below an overlay, or empty.
	Backing string
	// ModifiedAt is when the file was last written; zero when unknown.
	ModifiedAt time.Time
}

// handle addresses a volume. libvirt finds it by pool and name; the key is not
// looked at but may not be absent.
func handle(pool, name string) libvirt.StorageVol {
	return libvirt.StorageVol{Pool: pool, Name: name, Key: name}
}

// Volume describes one volume, or gives provider.ErrNotFound.
func (h *Host) Volume(ctx context.Context, pool, name string) (Volume, error) {
	document, err := ask(ctx, h, "StorageVolGetXMLDesc", []any{"pool", pool, "volume", name}, func(l *libvirt.Libvirt) (string, error) {
		return l.StorageVolGetXMLDesc(handle(pool, name), 0)
	})
	if err != nil {
		return Volume{}, err
	}
	h.traceXML("StorageVolGetXMLDesc", document)
	v, err := readVolume(document)
	if err != nil {
		return Volume{}, provider.Transientf("host %s: volume %s/%s: %w", h.options.Name, pool, name, err)
	}
	return v, nil
}

func readVolume(document string) (Volume, error) {
	var parsed struct {
		Name       string `xml:"name"`
		Capacity   int64  `xml:"capacity"`
		Allocation int64  `xml:"allocation"`
		Path       string `xml:"target>path"`
		Format     struct {
			Type string `xml:"type,attr"`
		} `xml:"target>format"`
		Modified string `xml:"target>timestamps>mtime"`
		Backing  string `xml:"backingStore>path"`
	}
	if err := xml.Unmarshal([]byte(document), &parsed); err != nil {
		return Volume{}, err
	}
	if parsed.Name == "" {
		return Volume{}, errors.New("the description has no name")
	}
	seconds, nanos, _ := strings.Cut(parsed.Modified, ".")
	var modified time.Time
	if s, err := strconv.ParseInt(seconds, 10, 64); err == nil {
		n, _ := strconv.ParseInt(nanos, 10, 64)
		modified = time.Unix(s, n).UTC()
	}
	return Volume{
		Name: parsed.Name, Path: parsed.Path, Format: parsed.Format.Type,
		Capacity: parsed.Capacity, Allocation: parsed.Allocation,
		Backing: parsed.Backing, ModifiedAt: modified,
	}, nil
}

// ListVolumes gives the names of all volumes of a pool.
func (h *Host) ListVolumes(ctx context.Context, pool string) ([]string, error) {
	raw, err := h.pool(ctx, pool)
	if err != nil {
		return nil, err
	}
	return ask(ctx, h, "StoragePoolListAllVolumes", []any{"pool", pool}, func(l *libvirt.Libvirt) (names []string, err error) {
		volumes, _, err := l.StoragePoolListAllVolumes(raw, 1, 0)
		for _, v := range volumes {
			names = append(names, v.Name)
		}
		return names, err
	})
}

// CreateVolume makes a volume from its XML. A name that is taken is an error
// with the code ErrStorageVolExist.
func (h *Host) CreateVolume(ctx context.Context, pool, document string) error {
	raw, err := h.pool(ctx, pool)
	if err != nil {
		return err
	}
	h.traceXML("StorageVolCreateXML", document)
	return h.call(ctx, "StorageVolCreateXML", []any{"pool", pool, "bytes", len(document)}, func(l *libvirt.Libvirt) error {
		_, err := l.StorageVolCreateXML(raw, document, 0)
		return err
	})
}

// busyWait is how long a volume may be in use by libvirt itself, which looks
// at a volume again after an upload.
const busyWait = 10 * time.Second

// DeleteVolume removes a volume; gone is success.
func (h *Host) DeleteVolume(ctx context.Context, pool, name string) error {
	deadline := time.Now().Add(busyWait)
	for {
		err := h.call(ctx, "StorageVolDelete", []any{"pool", pool, "volume", name}, func(l *libvirt.Libvirt) error {
			return l.StorageVolDelete(handle(pool, name), libvirt.StorageVolDeleteNormal)
		})
		switch {
		case err == nil, Is(err, libvirt.ErrNoStorageVol):
			return nil
		case !Is(err, libvirt.ErrOperationInvalid), time.Now().After(deadline):
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// VolumeSize asks for the size of a volume's file now, in bytes.
func (h *Host) VolumeSize(ctx context.Context, pool, name string) (int64, error) {
	return ask(ctx, h, "StorageVolGetInfoFlags", []any{"pool", pool, "volume", name}, func(l *libvirt.Libvirt) (int64, error) {
		// The capacity is that of the pool's last refresh; only the physical
		// size, which this flag puts in place of the allocation, is looked up.
		_, _, physical, err := l.StorageVolGetInfoFlags(handle(pool, name), uint32(libvirt.StorageVolGetPhysical))
		return int64(physical), err
	})
}

// ReadVolume reads at most length bytes of a volume's file, all of them into
// memory. It has a connection of its own: go-libvirt does not tell the daemon
// that it has read a stream to its end, and the daemon keeps the file open
// until the connection closes.
func (h *Host) ReadVolume(ctx context.Context, pool, name string, offset, length int64) ([]byte, error) {
	contents := make(chan []byte, 1) // of a download that was given up nobody reads
	given := func() []any {
		return []any{"pool", pool, "volume", name, "offset", offset, "length", length}
	}
	err := h.stream(ctx, "StorageVolDownload", given, func(s *session) error {
		var content bytes.Buffer
		err := s.libvirt.StorageVolDownload(handle(pool, name), &content, uint64(offset), uint64(length), 0)
		if err == nil {
			contents <- content.Bytes()
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return <-contents, nil
}
