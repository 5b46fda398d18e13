package domain

import "strings"

type devicesXML struct {
	Disks   []diskXML    `xml:"disk"`
	Card    cardXML      `xml:"interface"`
	Serial  serialXML    `xml:"serial"`
	Console consoleXML   `xml:"console"`
	Agent   channelXML   `xml:"channel"`
	RNG     rngXML       `xml:"rng"`
	Balloon attributeRef `xml:"memballoon"`
}

type attributeRef struct {
	Model string `xml:"model,attr"`
}

type diskXML struct {
	Type   string `xml:"type,attr"`
	Device string `xml:"device,attr"`
	Driver struct {
		Name    string `xml:"name,attr"`
		Type    string `xml:"type,attr"`
		Discard string `xml:"discard,attr,omitempty"`
	} `xml:"driver"`
	Source   fileXML   `xml:"source"`
	Target   targetXML `xml:"target"`
	ReadOnly *struct{} `xml:"readonly"`
	Boot     *bootXML  `xml:"boot"`
}

type fileXML struct {
	File string `xml:"file,attr"`
}

type targetXML struct {
	Dev string `xml:"dev,attr"`
	Bus string `xml:"bus,attr"`
}

type bootXML struct {
	Order int `xml:"order,attr"`
}

type cardXML struct {
	Type   string `xml:"type,attr"`
	MAC    macXML `xml:"mac"`
	Source struct {
		Bridge  string `xml:"bridge,attr,omitempty"`
		Network string `xml:"network,attr,omitempty"`
	} `xml:"source"`
	Model attribute `xml:"model"`
}

type macXML struct {
	Address string `xml:"address,attr"`
}

type serialXML struct {
	Type string `xml:"type,attr"`
	Log  struct {
		File   string `xml:"file,attr"`
		Append string `xml:"append,attr"`
	} `xml:"log"`
	Target portXML `xml:"target"`
}

type portXML struct {
	Type string `xml:"type,attr,omitempty"`
	Port int    `xml:"port,attr"`
}

type consoleXML struct {
	Type   string  `xml:"type,attr"`
	Target portXML `xml:"target"`
}

type channelXML struct {
	Type   string    `xml:"type,attr"`
	Source attribute `xml:"source"`
	Target attribute `xml:"target"`
}

type rngXML struct {
	Model   string `xml:"model,attr"`
	Backend struct {
		Model  string `xml:"model,attr"`
		Device string `xml:",chardata"`
	} `xml:"backend"`
}

// devices are what every current cloud image has drivers for. The seed is a
// virtio disk and no cdrom: kernels without AHCI, such as Debian 12's cloud
// kernel, don't see a SATA drive and boot without their user-data, silently.
func (m Machine) devices() devicesXML {
	d := devicesXML{
		Disks:   []diskXML{disk(m.Disk, "qcow2", "vda"), disk(m.Seed, "raw", "vdb")},
		Card:    m.card(),
		Serial:  serialXML{Type: "pty"},
		Console: consoleXML{Type: "pty", Target: portXML{Type: "serial"}},
		Agent: channelXML{
			Type:   "unix",
			Source: attribute{Mode: "bind"},
			Target: attribute{Type: "virtio", Name: "org.qemu.guest_agent.0"},
		},
		RNG:     rngXML{Model: "virtio"},
		Balloon: attributeRef{Model: "virtio"},
	}
	d.Disks[0].Boot = &bootXML{Order: 1}
	d.Disks[0].Driver.Discard = "unmap"
	d.Disks[1].ReadOnly = &struct{}{}
	// The pty is for `virsh console`; QEMU writes the file whether or not
	// somebody looks.
	d.Serial.Log.File, d.Serial.Log.Append = m.Console, "on"
	d.RNG.Backend.Model, d.RNG.Backend.Device = "random", "/dev/urandom"
	return d
}

func disk(path, format, dev string) diskXML {
	d := diskXML{
		Type:   "file",
		Device: "disk",
		Source: fileXML{File: path},
		Target: targetXML{Dev: dev, Bus: "virtio"},
	}
	d.Driver.Name, d.Driver.Type = "qemu", format
	return d
}

func (m Machine) card() cardXML {
	c := cardXML{MAC: macXML{Address: MAC(m.Name)}, Model: attribute{Type: "virtio"}}
	if bridge, ok := strings.CutPrefix(m.Network, BridgePrefix); ok {
		c.Type, c.Source.Bridge = "bridge", bridge
	} else {
		c.Type, c.Source.Network = "network", m.Network
	}
	return c
}
