package image

import (
	"bytes"
	"io"
	"strings"
	"testing"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"github.com/ulikunitz/xz"

	"github.com/egress-proxies/egress/provider"
)

// pack compresses with what make makes.
func pack(t *testing.T, b []byte, make func(io.Writer) (io.WriteCloser, error)) []byte {
	t.Helper()
	var out bytes.Buffer
	w, err := make(&out)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(b); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func packers() map[string]func(io.Writer) (io.WriteCloser, error) {
	return map[string]func(io.Writer) (io.WriteCloser, error){
		"gzip": func(w io.Writer) (io.WriteCloser, error) { return gzip.NewWriter(w), nil },
		"xz":   func(w io.Writer) (io.WriteCloser, error) { return xz.NewWriter(w) },
		"zstd": func(w io.Writer) (io.WriteCloser, error) { return zstd.NewWriter(w) },
	}
}

func TestCompressedImagesAreUnpackedOnTheWay(t *testing.T) {
	for _, plain := range [][]byte{disk(400 << 10), qcow2()} {
		for name, packer := range packers() {
			packed := pack(t, plain, packer)
			server := newWeb(t, packed)
			s := server.source(t)
			s.SHA256 = sha(packed)
			p := newPool(name)
			base := ensure(t, cache(t), s, p)
			p.holds(t, base, plain)
			if base.Digest != sha(packed)[:idLength] {
				t.Errorf("%s: the digest is not that of the published file: %s", name, base.Digest)
			}
		}
	}
}

func TestCompressedDataThatIsDamaged(t *testing.T) {
	plain := disk(400 << 10)
	for name, packer := range packers() {
		packed := pack(t, plain, packer)
		damaged := bytes.Clone(packed)
		copy(damaged[len(damaged)/2:], strings.Repeat("\x55", 64))
		for kind, c := range map[string]struct {
			data  []byte
			class error
		}{
			"cut":     {packed[:len(packed)-5000], provider.ErrTransient},
			"damaged": {damaged, provider.ErrPermanent},
		} {
			server := newWeb(t, c.data)
			p := newPool("a")
			if _, err := cache(t).Ensure(t.Context(), server.source(t), p); provider.Classify(err) != c.class {
				t.Errorf("%s %s: got %v; want class %v", kind, name, err, c.class)
			}
			p.empty(t)
		}
	}
}

func TestCompressedImageWhoseServerIsCutGoesOn(t *testing.T) {
	plain := disk(400 << 10)
	for name, packer := range packers() {
		packed := pack(t, plain, packer)
		server := newWeb(t, packed)
		cutting(server, len(packed)-1000)
		p := newPool(name)
		p.holds(t, ensure(t, cache(t), server.source(t), p), plain)
		if server.count() != 2 {
			t.Errorf("%s: %d requests; want 2", name, server.count())
		}
	}
}

func TestEmptyFileIsNoImage(t *testing.T) {
	server := newWeb(t, nil)
	p := newPool("a")
	_, err := cache(t).Ensure(t.Context(), server.source(t), p)
	if provider.Classify(err) != provider.ErrTransient || !strings.Contains(err.Error(), "empty") {
		t.Errorf("got %v", err)
	}
	p.empty(t)
}
