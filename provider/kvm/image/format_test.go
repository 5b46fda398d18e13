package image

import (
	"bytes"
	"encoding/binary"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/egress-proxies/egress/provider"
)

// qcow2 is the first cluster of an image of 1 GiB, changed by the functions.
func qcow2(change ...func([]byte)) []byte {
	b := make([]byte, 64<<10)
	copy(b, "QFI\xfb")
	binary.BigEndian.PutUint32(b[qcowVersion:], 3)
	binary.BigEndian.PutUint32(b[qcowClusterBits:], 16)
	binary.BigEndian.PutUint64(b[qcowVirtualSize:], 1<<30)
	binary.BigEndian.PutUint32(b[qcowHeaderLength:], qcowV3Length)
	for _, f := range change {
		f(b)
	}
	return b
}

func put32(offset int, v uint32) func([]byte) {
	return func(b []byte) { binary.BigEndian.PutUint32(b[offset:], v) }
}

func put64(offset int, v uint64) func([]byte) {
	return func(b []byte) { binary.BigEndian.PutUint64(b[offset:], v) }
}

// extension puts one at offset.
func extension(offset int, kind uint32, size uint32) func([]byte) {
	return func(b []byte) { put32(offset, kind)(b); put32(offset+4, size)(b) }
}

func TestImagesThatMustNotBeBooted(t *testing.T) {
	backing := qcow2(put64(qcowBackingOffset, 512), put32(qcowBackingOffset+8, 11))
	copy(backing[512:], "/etc/shadow")
	version2 := qcow2(put32(qcowVersion, 2), put64(qcowBackingOffset, 512), put32(qcowBackingOffset+8, 11))
	for name, c := range map[string]struct {
		image []byte
		want  string
	}{
		"backing file":                      {backing, `backing file "/etc/shadow"`},
		"backing file, version 2":           {version2, "backing file"},
		"backing name outside":              {qcow2(put64(qcowBackingOffset, 1<<63), put32(qcowBackingOffset+8, 1<<31)), `backing file "?"`},
		"data file, by its bit":             {qcow2(put64(qcowIncompatible, featureDataFile)), "data in another file"},
		"data file, by its name":            {qcow2(extension(104, extensionDataFile, 8)), "names a data file"},
		"data file, behind other extension": {qcow2(extension(104, 0x6803f857, 13), extension(104+8+16, extensionDataFile, 8)), "names a data file"},
		"data file, behind a long header":   {qcow2(put32(qcowHeaderLength, 112), extension(112, extensionDataFile, 8)), "names a data file"},
		"encrypted":                         {qcow2(put32(qcowCryptMethod, 2)), "encrypted"},
		"corrupt":                           {qcow2(put64(qcowIncompatible, featureCorrupt)), "corrupt"},
		"unknown feature":                   {qcow2(put64(qcowIncompatible, 1<<40)), "unknown incompatible features 0x10000000000"},
		"version 1":                         {qcow2(put32(qcowVersion, 1)), "version 1"},
		"cut header":                        {qcow2()[:60], "60 bytes"},
		"cut header, version 3":             {qcow2()[:80], "version 3 in 80 bytes"},
		"no size":                           {qcow2(put64(qcowVirtualSize, 0)), "a disk of 0 bytes"},
		"huge size":                         {qcow2(put64(qcowVirtualSize, 1<<63)), "a disk of 9223372036854775808 bytes"},
		"tiny clusters":                     {qcow2(put32(qcowClusterBits, 3)), "clusters of 2^3"},
		"huge clusters":                     {qcow2(put32(qcowClusterBits, 40)), "clusters of 2^40"},
		"header length":                     {qcow2(put32(qcowHeaderLength, 1<<31)), "its length is 2147483648"},
		"extension past the cluster":        {qcow2(extension(104, 7, 1<<31)), "goes past the first cluster"},
		"VMDK":                              {append([]byte("KDMV"), make([]byte, 1000)...), "VMDK"},
		"VHDX":                              {append([]byte("vhdxfile"), make([]byte, 1000)...), "VHDX"},
		"ZIP":                               {append([]byte("PK\x03\x04"), make([]byte, 1000)...), "ZIP"},
		"web page":                          {[]byte("\n<!DOCTYPE html><html>Please log in"), "web page"},
		"text":                              {[]byte("404 not found\n"), "text/plain"},
	} {
		if h, err := parseHeader(c.image); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %+v, %v; want an error with %q", name, h, err, c.want)
		}
	}
}

func TestFormatComesFromTheHeader(t *testing.T) {
	for name, c := range map[string]struct {
		image []byte
		want  header
	}{
		"version 3":             {qcow2(), header{Qcow2, 1 << 30}},
		"version 2":             {qcow2(put32(qcowVersion, 2), put32(qcowHeaderLength, 0)), header{Qcow2, 1 << 30}},
		"zstd clusters":         {qcow2(put64(qcowIncompatible, featureCompression)), header{Qcow2, 1 << 30}},
		"with a feature table":  {qcow2(extension(104, 0x6803f857, 0x180)), header{Qcow2, 1 << 30}},
		"zeros":                 {make([]byte, 4096), header{Raw, 0}},
		"boot code":             {disk(4096), header{Raw, 0}},
		"qcow2 magic elsewhere": {append(make([]byte, 512), qcow2()...), header{Raw, 0}},
	} {
		if h, err := parseHeader(c.image); err != nil || h != c.want {
			t.Errorf("%s: got %+v, %v; want %+v", name, h, err, c.want)
		}
	}
}

// What QEMU itself writes is judged rightly.
func TestFormatOfRealImages(t *testing.T) {
	dir := t.TempDir()
	run := func(args ...string) {
		t.Helper()
		cmd := exec.Command("qemu-img", args...)
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("qemu-img %v: %v: %s", args, err, out)
		}
	}
	run("create", "-q", "-f", "qcow2", "plain", "1G")
	run("create", "-q", "-f", "qcow2", "-o", "compat=0.10", "old", "1G")
	run("create", "-q", "-f", "qcow2", "-o", "cluster_size=2M,compression_type=zstd", "big", "1G")
	run("create", "-q", "-f", "qcow2", "-o", "backing_file=plain,backing_fmt=qcow2", "overlay")
	run("create", "-q", "-f", "qcow2", "-o", "data_file=data,data_file_raw=on", "external", "1G")
	run("create", "-q", "-f", "vmdk", "vmdk", "1G")
	run("create", "-q", "-f", "vdi", "vdi", "1G")
	run("create", "-q", "-f", "vhdx", "vhdx", "1G")
	run("create", "-q", "-f", "qed", "qed", "1G")
	// By hand: qemu-img times its key derivation first and gives up on a machine
	// whose CPU clock is coarse. The header is "LUKS", 0xBA 0xBE and version 1.
	luks := append([]byte("LUKS\xba\xbe\x00\x01"), make([]byte, 1<<20)...)
	if err := os.WriteFile(filepath.Join(dir, "luks"), luks, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, good := range map[string]bool{
		"plain": true, "old": true, "big": true,
		"overlay": false, "external": false, "vmdk": false, "vdi": false, "vhdx": false, "qed": false, "luks": false,
	} {
		c, p := cache(t), newPool("a")
		base, err := c.Ensure(t.Context(), Source{Path: filepath.Join(dir, name)}, p)
		if good && (err != nil || base.Format != Qcow2 || base.VirtualSize != 1<<30) {
			t.Errorf("%s: got %+v, %v", name, base, err)
		}
		if !good {
			if provider.Classify(err) != provider.ErrPermanent {
				t.Errorf("%s: got %v; want a permanent error", name, err)
			}
			p.empty(t)
		}
	}
}

func TestConfiguredFormatMustFit(t *testing.T) {
	server := newWeb(t, qcow2())
	s := server.source(t)
	s.Format = Raw
	_, err := cache(t).Ensure(t.Context(), s, newPool("a"))
	if provider.Classify(err) != provider.ErrPermanent || !strings.Contains(err.Error(), `format "raw": the file's header says qcow2`) {
		t.Errorf("got %v", err)
	}
}

func FuzzParseHeader(f *testing.F) {
	f.Add(qcow2())
	f.Add(qcow2()[:80])
	f.Add(qcow2(put32(qcowVersion, 2)))
	f.Add(qcow2(put64(qcowBackingOffset, 200), put32(qcowBackingOffset+8, 1000)))
	f.Add(qcow2(extension(104, 7, 0xffffffff)))
	f.Add(qcow2(extension(104, extensionDataFile, 3)))
	f.Add([]byte("<html>"))
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := parseHeader(b)
		if err != nil || h.format != Qcow2 {
			return
		}
		if h.virtualSize <= 0 || h.virtualSize > maxVirtualSize {
			t.Errorf("accepted a disk of %d bytes", h.virtualSize)
		}
		if binary.BigEndian.Uint64(b[qcowBackingOffset:]) != 0 {
			t.Error("accepted a backing file")
		}
		if bytes.HasPrefix(b[min(len(b), 104):], []byte("DATA")) && b[qcowHeaderLength+3] == 104 && b[7] == 3 {
			t.Error("accepted a data file")
		}
	})
}
