package domain

import (
	"encoding/xml"
	"fmt"
	"strconv"
	"strings"

	"github.com/egress-proxies/egress/provider"
)

// Volume describes a volume to create.
type Volume struct {
	// Name is the file's name.
	Name string
	// Format is "raw" or "qcow2".
	Format string
	// Capacity is what a guest sees, in bytes.
	Capacity int64
	// Backing is the path below an overlay, and BackingFormat its format,
	// which must be said: QEMU does not guess it, for safety.
	Backing, BackingFormat string
}

type volumeXML struct {
	XMLName    xml.Name    `xml:"volume"`
	Name       string      `xml:"name"`
	Capacity   bytesXML    `xml:"capacity"`
	Allocation bytesXML    `xml:"allocation"`
	Target     volTarget   `xml:"target"`
	Backing    *backingXML `xml:"backingStore"`
}

type bytesXML struct {
	Unit string `xml:"unit,attr"`
	Size int64  `xml:",chardata"`
}

type volTarget struct {
	Format attribute `xml:"format"`
}

type backingXML struct {
	Path   string    `xml:"path"`
	Format attribute `xml:"format"`
}

// XML is the definition of the volume. It is sparse: nothing is allocated.
func (v Volume) XML() (string, error) {
	format := v.Format
	if format == "" {
		format = "raw"
	}
	x := volumeXML{
		Name:       v.Name,
		Capacity:   bytesXML{Unit: "bytes", Size: v.Capacity},
		Allocation: bytesXML{Unit: "bytes"},
		Target:     volTarget{Format: attribute{Type: format}},
	}
	if v.Backing != "" {
		x.Backing = &backingXML{Path: v.Backing, Format: attribute{Type: v.BackingFormat}}
	}
	out, err := xml.MarshalIndent(x, "", "  ")
	if err != nil {
		return "", fmt.Errorf("volume %s: %w", v.Name, err)
	}
	return string(out) + "\n", nil
}

// Kind of a piece that an instance has in a pool.
type Kind string

// The kinds, which are the endings of the files' names.
const (
	Disk    Kind = "qcow2"
	Seed    Kind = "iso"
	Console Kind = "log"
)

// Kinds are all of them.
var Kinds = []Kind{Disk, Seed, Console}

// volumePrefix starts the names of all pieces.
const volumePrefix = "egress_"

// VolumeName is the name of a piece. A volume has no place for labels, so the
// cluster stands in its name: a piece without its machine must be known as
// ours.
func VolumeName(cluster, name string, kind Kind) string {
	return volumePrefix + cluster + "_" + name + "." + string(kind)
}

// ParseVolumeName takes the name of a piece apart; ok is false for any other
// file. Names of instances have neither _ nor a dot.
func ParseVolumeName(volume string) (cluster, name string, kind Kind, ok bool) {
	rest, ours := strings.CutPrefix(volume, volumePrefix)
	dot := strings.LastIndexByte(rest, '.')
	if !ours || dot < 0 {
		return "", "", "", false
	}
	kind = Kind(rest[dot+1:])
	under := strings.LastIndexByte(rest[:dot], '_')
	if under < 0 || (kind != Disk && kind != Seed && kind != Console) {
		return "", "", "", false
	}
	cluster, name = rest[:under], rest[under+1:dot]
	return cluster, name, kind, provider.CheckName(name) == nil
}

func itoa(n int) string { return strconv.Itoa(n) }

func atoi(s string) int {
	n, err := strconv.Atoi(s)
	if err != nil {
		return 0
	}
	return n
}
