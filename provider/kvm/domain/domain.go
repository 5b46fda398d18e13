// Package domain builds the XML that libvirt gets and reads back what is ours
// in it. It knows no connection.
package domain

import (
	"crypto/sha256"
	"encoding/xml"
	"fmt"
	"strings"

	"github.com/egress-proxies/egress/provider"
)

// Machine describes one machine.
type Machine struct {
	// Name of the domain.
	Name string
	// VirtType is "kvm" or "qemu".
	VirtType string
	// CPUMode is libvirt's: "host-passthrough", "host-model", "maximum".
	CPUMode string
	// Cores is the number of virtual processors.
	Cores int
	// MemoryMiB is in units of 2^20 bytes.
	MemoryMiB int64
	// BIOS boots with SeaBIOS instead of UEFI.
	BIOS bool
	// Disk, Seed and Console are absolute paths on the host. AppArmor lets QEMU
	// open what the XML names as a file, and refuses a reference to a volume.
	Disk, Seed, Console string
	// Network is a libvirt network, or "bridge:br0".
	Network string
	// Metadata is what is remembered with the machine.
	Metadata Metadata
}

// BridgePrefix marks a host bridge in the network key.
const BridgePrefix = "bridge:"

// MAC is the network card's address, derived from the machine's name in the
// range that libvirt and QEMU use (52:54:00).
func MAC(name string) string {
	sum := sha256.Sum256([]byte("mac\x00" + name))
	return fmt.Sprintf("52:54:00:%02x:%02x:%02x", sum[0], sum[1], sum[2])
}

type attribute struct {
	Value string `xml:"value,attr,omitempty"`
	Type  string `xml:"type,attr,omitempty"`
	Name  string `xml:"name,attr,omitempty"`
	Mode  string `xml:"mode,attr,omitempty"`
}

type domainXML struct {
	XMLName  xml.Name      `xml:"domain"`
	Type     string        `xml:"type,attr"`
	Name     string        `xml:"name"`
	Metadata metadataOuter `xml:"metadata"`
	Memory   memoryXML     `xml:"memory"`
	VCPU     int           `xml:"vcpu"`
	OS       osXML         `xml:"os"`
	Features featuresXML   `xml:"features"`
	CPU      attribute     `xml:"cpu"`
	Clock    clockXML      `xml:"clock"`
	Poweroff string        `xml:"on_poweroff"`
	Reboot   string        `xml:"on_reboot"`
	Crash    string        `xml:"on_crash"`
	Devices  devicesXML    `xml:"devices"`
}

type metadataOuter struct {
	Inner string `xml:",innerxml"`
}

type memoryXML struct {
	Unit string `xml:"unit,attr"`
	Size int64  `xml:",chardata"`
}

type osXML struct {
	Firmware string       `xml:"firmware,attr,omitempty"`
	Type     osType       `xml:"type"`
	Feature  *firmwareXML `xml:"firmware"`
	BIOS     *biosXML     `xml:"bios"`
}

type osType struct {
	Arch    string `xml:"arch,attr"`
	Machine string `xml:"machine,attr"`
	Value   string `xml:",chardata"`
}

type firmwareXML struct {
	Feature struct {
		Enabled string `xml:"enabled,attr"`
		Name    string `xml:"name,attr"`
	} `xml:"feature"`
}

type biosXML struct {
	UseSerial string `xml:"useserial,attr"`
}

type featuresXML struct {
	ACPI, APIC struct{}
}

// MarshalXML writes the two empty elements in lower case.
func (featuresXML) MarshalXML(e *xml.Encoder, start xml.StartElement) error {
	return e.EncodeElement(struct {
		ACPI struct{} `xml:"acpi"`
		APIC struct{} `xml:"apic"`
	}{}, start)
}

type clockXML struct {
	Offset string `xml:"offset,attr"`
}

// XML is the definition of the machine.
func (m Machine) XML() (string, error) {
	inner, err := m.Metadata.XML()
	if err != nil {
		return "", err
	}
	d := domainXML{
		Type:     m.VirtType,
		Name:     m.Name,
		Metadata: metadataOuter{Inner: inner},
		Memory:   memoryXML{Unit: "MiB", Size: m.MemoryMiB},
		VCPU:     m.Cores,
		OS:       m.os(),
		CPU:      attribute{Mode: m.CPUMode},
		Clock:    clockXML{Offset: "utc"},
		// Off is the end of an instance, and only a reboot is not.
		Poweroff: "destroy",
		Reboot:   "restart",
		Crash:    "destroy",
		Devices:  m.devices(),
	}
	out, err := xml.MarshalIndent(d, "", "  ")
	if err != nil {
		return "", fmt.Errorf("domain %s: %w", m.Name, err)
	}
	return string(out) + "\n", nil
}

// os is UEFI without secure boot: libvirt would pick the secure image, on
// which an unsigned boot loader doesn't start. SeaBIOS talks on the serial
// console, since there is no screen.
func (m Machine) os() osXML {
	o := osXML{Type: osType{Arch: "x86_64", Machine: "q35", Value: "hvm"}}
	if m.BIOS {
		o.BIOS = &biosXML{UseSerial: "yes"}
		return o
	}
	o.Firmware, o.Feature = "efi", &firmwareXML{}
	o.Feature.Feature.Enabled, o.Feature.Feature.Name = "no", "secure-boot"
	return o
}

// Mode is the CPU mode for a virtualization type; "auto" and empty choose the
// one that gives the guest all that the host has. QEMU's emulation refuses
// host-passthrough and host-model when the machine starts, so that they count
// under KVM only.
func Mode(virtType, mode string) string {
	switch {
	case virtType != "kvm" && strings.HasPrefix(mode, "host-"):
		return "maximum"
	case mode != "" && mode != "auto":
		return mode
	case virtType == "kvm":
		return "host-passthrough"
	default:
		return "maximum"
	}
}

// checkSafe says whether s may stand in an XML document: libvirt
// refuses control characters, and the encoder would replace them silently.
func checkSafe(key, s string) error {
	if i := strings.IndexFunc(s, func(r rune) bool { return r < 0x20 && r != '\t' || r == 0xFFFD }); i >= 0 {
		return provider.Permanentf("label %s: %q: control characters can't be stored", key, s)
	}
	return nil
}
