package image

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
)

// Prefix starts the name of every volume that holds an image.
const Prefix = "egress-base-"

// A base is two volumes, because libvirt can't rename one: the data, under a
// name that no other attempt ever uses, and then, when all of it arrived and
// was verified, an empty marker. Data without a marker is a partial file; it is
// never used, whoever made it and however it ended.
//
//	egress-base-<id>.<owner>.<nonce>.qcow2
//	egress-base-<id>.<owner>.<nonce>.qcow2.<bytes>.<digest>.ready

// baseName is the name of a data volume.
type baseName struct {
	// id is what the content is known by before it is fetched.
	id string
	// owner is a hash of who fetched it, so that one who comes back finds the
	// partial files of its own earlier life.
	owner string
	// nonce makes the name unique.
	nonce  string
	format Format
}

func (n baseName) String() string {
	return fmt.Sprintf("%s%s.%s.%s.%s", Prefix, n.id, n.owner, n.nonce, n.format)
}

// marker is what is known of a complete base.
type marker struct {
	base baseName
	// virtualSize is the size that a guest sees, in bytes.
	virtualSize int64
	// digest is the start of the SHA-256 of the file as it was published.
	digest string
}

func (m marker) String() string {
	return fmt.Sprintf("%s.%d.%s.ready", m.base, m.virtualSize, m.digest)
}

// found is the base that a marker's volume stands for.
func (m marker) found(target Target, data, volume Volume) Base {
	used := data.ModifiedAt
	if volume.ModifiedAt.After(used) {
		used = volume.ModifiedAt
	}
	return Base{
		Target: target.String(), Volume: data, Format: m.base.format, VirtualSize: m.virtualSize, Digest: m.digest,
		UsedAt: used, marker: volume.Name,
	}
}

// parseBase reads the name of a data volume.
func parseBase(s string) (baseName, bool) {
	parts := strings.Split(strings.TrimPrefix(s, Prefix), ".")
	if !strings.HasPrefix(s, Prefix) || len(parts) != 4 {
		return baseName{}, false
	}
	n := baseName{id: parts[0], owner: parts[1], nonce: parts[2], format: Format(parts[3])}
	return n, n.format == Raw || n.format == Qcow2
}

// parseMarker reads the name of a marker.
func parseMarker(s string) (marker, bool) {
	rest, ok := strings.CutSuffix(s, ".ready")
	parts := strings.Split(rest, ".")
	if !ok || len(parts) != 6 {
		return marker{}, false
	}
	base, ok := parseBase(strings.Join(parts[:4], "."))
	size, err := strconv.ParseInt(parts[4], 10, 64)
	return marker{base: base, virtualSize: size, digest: parts[5]}, ok && err == nil && size > 0
}

// idLength keeps 128 bits of a digest, which no two contents share by chance
// and nobody can aim at.
const idLength = 32

// declaredID is the id of content whose digest is known beforehand, or empty.
func declaredID(s Source) string {
	switch {
	case s.SHA256 != "":
		return s.SHA256[:idLength]
	case s.SHA512 != "":
		return s.SHA512[:idLength]
	default:
		return ""
	}
}

// hashID is an id made of anything that tells contents apart.
func hashID(parts ...string) string {
	sum := sha256.Sum256([]byte(strings.Join(parts, "\x00")))
	return hex.EncodeToString(sum[:])[:idLength]
}

// ownerID is the part of names that tells who fetches.
func ownerID(owner string) string {
	if owner == "" {
		return newNonce()[:8]
	}
	return hashID("owner", owner)[:8]
}

// newNonce is 64 random bits.
func newNonce() string {
	var b [8]byte
	_, _ = rand.Read(b[:]) // it never fails
	return hex.EncodeToString(b[:])
}
