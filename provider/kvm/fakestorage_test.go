package kvm

import (
	"bytes"
	"context"
	"encoding/xml"
	"io"
	"strings"
	"time"

	"github.com/digitalocean/go-libvirt"

	"github.com/egress-proxies/egress/provider"
	"github.com/egress-proxies/egress/provider/kvm/virt"
)

type fakeVolume struct {
	content []byte
	xml     string
}

func (f *fake) Pool(ctx context.Context, _ string, _ bool) (p virt.Pool, err error) {
	end, err := f.begin(ctx, "Pool")
	if err != nil {
		return p, err
	}
	defer end(&err)
	return f.pool, nil
}

func (f *fake) volume(name string) (*fakeVolume, error) {
	if v, ok := f.volumes[name]; ok {
		return v, nil
	}
	return nil, answer(provider.ErrNotFound, libvirt.ErrNoStorageVol, "no storage vol with matching name '"+name+"'")
}

func (f *fake) Volume(ctx context.Context, _, name string) (v virt.Volume, err error) {
	end, err := f.begin(ctx, "Volume")
	if err != nil {
		return v, err
	}
	defer end(&err)
	found, err := f.volume(name)
	if err != nil {
		return v, err
	}
	return virt.Volume{Name: name, Path: "/pool/" + name, Format: "raw", Capacity: int64(len(found.content)), ModifiedAt: time.Now()}, nil
}

func (f *fake) ListVolumes(ctx context.Context, _ string) (names []string, err error) {
	end, err := f.begin(ctx, "ListVolumes")
	if err != nil {
		return nil, err
	}
	defer end(&err)
	for name := range f.volumes {
		names = append(names, name)
	}
	return names, nil
}

func (f *fake) CreateVolume(ctx context.Context, _, document string) (err error) {
	end, err := f.begin(ctx, "CreateVolume")
	if err != nil {
		return err
	}
	defer end(&err)
	var parsed struct {
		Name string `xml:"name"`
	}
	if err := xml.Unmarshal([]byte(document), &parsed); err != nil {
		return err
	}
	if _, ok := f.volumes[parsed.Name]; ok {
		return answer(provider.ErrTransient, libvirt.ErrStorageVolExist, "storage vol already exists")
	}
	f.volumes[parsed.Name] = &fakeVolume{xml: document}
	return nil
}

func (f *fake) DeleteVolume(ctx context.Context, _, name string) (err error) {
	end, err := f.begin(ctx, "DeleteVolume")
	if err != nil {
		return err
	}
	defer end(&err)
	delete(f.volumes, name)
	return nil
}

func (f *fake) Upload(ctx context.Context, _, name string, r io.Reader) (err error) {
	content, err := io.ReadAll(r)
	if err != nil {
		return provider.Transientf("upload: %w", err)
	}
	method := "Upload"
	if strings.HasSuffix(name, ".iso") {
		method = "Upload/seed"
	}
	end, err := f.begin(ctx, method)
	if err != nil {
		return err
	}
	defer end(&err)
	v, err := f.volume(name)
	if err != nil {
		return err
	}
	v.content = content
	return nil
}

func (f *fake) VolumeSize(ctx context.Context, _, name string) (size int64, err error) {
	end, err := f.begin(ctx, "VolumeSize")
	if err != nil {
		return 0, err
	}
	defer end(&err)
	v, err := f.volume(name)
	if err != nil {
		return 0, err
	}
	return int64(len(v.content)), nil
}

func (f *fake) ReadVolume(ctx context.Context, _, name string, offset, length int64) (b []byte, err error) {
	end, err := f.begin(ctx, "ReadVolume")
	if err != nil {
		return nil, err
	}
	defer end(&err)
	v, err := f.volume(name)
	if err != nil {
		return nil, err
	}
	return bytes.Clone(v.content[offset:min(offset+length, int64(len(v.content)))]), nil
}
