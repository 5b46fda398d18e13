package image

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/http"
	"strings"
)

// header is what the first bytes of a disk image say.
type header struct {
	format Format
	// virtualSize is the size that a guest sees; 0 for raw, whose size is that
	// of the file.
	virtualSize int64
}

// headerLimit is how much of a file parseHeader can need: the first cluster of
// a qcow2 image, of at most 2 MiB, holds its header and all its extensions.
const headerLimit = 2 << 20

// maxVirtualSize is the largest disk we accept. It is far above what any cloud
// image has, and keeps sizes from the network well within an int64.
const maxVirtualSize = 64 << 40

// Other formats, by how they start, which would boot as garbage if taken for
// raw.
var foreign = []struct{ magic, name string }{
	{"KDMV", "VMDK"},
	{"COWD", "VMDK"},
	{"# Disk DescriptorFile", "VMDK"},
	{"conectix", "VHD"},
	{"vhdxfile", "VHDX"},
	{"<<< ", "VDI"},
	{"QED\x00", "QED"},
	{"LUKS\xba\xbe", "LUKS"},
	{"PK\x03\x04", "ZIP"},
	{"BZh", "bzip2"},
	{"7z\xbc\xaf\x27\x1c", "7-Zip"},
}

// parseHeader tells the format from the first bytes of an image, all of it
// when it is shorter than headerLimit, and refuses what must not be booted.
func parseHeader(b []byte) (header, error) {
	if bytes.HasPrefix(b, []byte("QFI\xfb")) {
		return parseQcow2(b)
	}
	for _, f := range foreign {
		if bytes.HasPrefix(b, []byte(f.magic)) {
			return header{}, fmt.Errorf("the file is %s: want qcow2 or raw, alone or in .gz, .xz or .zst", f.name)
		}
	}
	if kind := http.DetectContentType(b); strings.HasPrefix(kind, "text/") {
		return header{}, fmt.Errorf("the file is %s: want a disk image; does the URL lead to a web page?", kind)
	}
	return header{format: Raw}, nil
}

// Of the fields of a qcow2 header (QEMU's docs/interop/qcow2.txt), those that
// matter here, by their offsets. Numbers are big-endian.
const (
	qcowVersion       = 4
	qcowBackingOffset = 8
	qcowClusterBits   = 20
	qcowVirtualSize   = 24
	qcowCryptMethod   = 32
	qcowIncompatible  = 72
	qcowHeaderLength  = 100
	qcowV2Length      = 72
	qcowV3Length      = 104
)

// The incompatible features of qcow2, by their bits.
const (
	featureDirty       = 1 << 0
	featureCorrupt     = 1 << 1
	featureDataFile    = 1 << 2
	featureCompression = 1 << 3
	featureExtendedL2  = 1 << 4
)

// Header extensions of qcow2, by their types.
const (
	extensionEnd      = 0
	extensionDataFile = 0x44415441
)

// parseQcow2 refuses images that name other files. QEMU would open them on the
// host, with the host's rights, and the guest could read them.
func parseQcow2(b []byte) (header, error) {
	if len(b) < qcowV2Length {
		return header{}, fmt.Errorf("qcow2 header: %d bytes: want %d", len(b), qcowV2Length)
	}
	length, features := uint32(qcowV2Length), uint64(0)
	switch version := binary.BigEndian.Uint32(b[qcowVersion:]); {
	case version == 2:
	case version == 3 && len(b) >= qcowV3Length:
		length = binary.BigEndian.Uint32(b[qcowHeaderLength:])
		features = binary.BigEndian.Uint64(b[qcowIncompatible:])
	default:
		return header{}, fmt.Errorf("qcow2 header: version %d in %d bytes: want a whole header of version 2 or 3", version, len(b))
	}
	if err := checkFeatures(features); err != nil {
		return header{}, err
	}
	if offset := binary.BigEndian.Uint64(b[qcowBackingOffset:]); offset != 0 {
		return header{}, fmt.Errorf("the qcow2 image has a backing file %q: want an image that needs no other file (qemu-img convert makes one)", backingName(b))
	}
	if method := binary.BigEndian.Uint32(b[qcowCryptMethod:]); method != 0 {
		return header{}, fmt.Errorf("the qcow2 image is encrypted (method %d): want a plain one", method)
	}
	bits := binary.BigEndian.Uint32(b[qcowClusterBits:])
	if bits < 9 || bits > 21 {
		return header{}, fmt.Errorf("qcow2 header: clusters of 2^%d bytes: want 2^9 to 2^21", bits)
	}
	size := binary.BigEndian.Uint64(b[qcowVirtualSize:])
	if size == 0 || size > maxVirtualSize {
		return header{}, fmt.Errorf("qcow2 header: a disk of %d bytes: want 1 to %d", size, int64(maxVirtualSize))
	}
	if err := checkExtensions(b, length, 1<<bits); err != nil {
		return header{}, err
	}
	return header{format: Qcow2, virtualSize: int64(size)}, nil
}

func checkFeatures(features uint64) error {
	const known = featureDirty | featureCorrupt | featureDataFile | featureCompression | featureExtendedL2
	switch {
	case features&featureDataFile != 0:
		return fmt.Errorf("the qcow2 image keeps its data in another file: want an image that needs no other file")
	case features&featureCorrupt != 0:
		return fmt.Errorf("the qcow2 image is marked corrupt: want one that qemu-img check finds whole")
	case features&^known != 0:
		return fmt.Errorf("the qcow2 image has unknown incompatible features %#x: want one that QEMU 7 can read", features&^known)
	}
	return nil
}

// checkExtensions walks the extensions, which follow the header within the
// first cluster.
func checkExtensions(b []byte, length uint32, cluster int) error {
	b = b[:min(len(b), cluster)]
	if length < qcowV2Length || length%8 != 0 || int64(length) > int64(len(b)) {
		return fmt.Errorf("qcow2 header: its length is %d bytes: want a multiple of 8 within the first cluster", length)
	}
	for rest := b[length:]; len(rest) >= 8; {
		kind, size := binary.BigEndian.Uint32(rest), binary.BigEndian.Uint32(rest[4:])
		switch {
		case kind == extensionEnd:
			return nil
		case kind == extensionDataFile:
			return fmt.Errorf("the qcow2 image names a data file: want an image that needs no other file")
		case int64(size) > int64(len(rest)-8):
			return fmt.Errorf("qcow2 header: extension %#x of %d bytes goes past the first cluster", kind, size)
		}
		rest = rest[8:]
		rest = rest[min(len(rest), (int(size)+7)/8*8):]
	}
	return nil
}

// backingName is the reference, for the message only.
func backingName(b []byte) string {
	offset := binary.BigEndian.Uint64(b[qcowBackingOffset:])
	size := uint64(binary.BigEndian.Uint32(b[qcowBackingOffset+8:]))
	if offset > uint64(len(b)) || size > 1023 || offset+size > uint64(len(b)) {
		return "?"
	}
	return string(b[offset : offset+size])
}
