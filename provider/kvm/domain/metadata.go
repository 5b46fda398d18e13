package domain

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"slices"
	"strings"

	"github.com/egress-proxies/egress/provider"
)

// Namespace of the metadata element. It is a name and no address.
const Namespace = "https://github.com/egress-proxies/egress/kvm/1"

// prefix of the elements; libvirt keeps it.
const prefix = "egress"

// Metadata is what is remembered with a machine.
type Metadata struct {
	// Labels say whose it is.
	Labels provider.Labels
	// Port is where its proxy listens.
	Port int
	// Stale are leases, as address@expiry, that existed for its MAC before it
	// started: they belong to an earlier machine.
	Stale []string
}

// XML is the element for a domain's <metadata>.
func (m Metadata) XML() (string, error) {
	var b bytes.Buffer
	b.WriteString("\n    <" + prefix + ":instance xmlns:" + prefix + "=\"" + Namespace + "\">\n")
	values := m.Labels.Map()
	if m.Port != 0 {
		values[portKey] = itoa(m.Port)
	}
	for i, lease := range m.Stale {
		values[staleKey+itoa(i)] = lease
	}
	keys := make([]string, 0, len(values))
	for key := range values {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	for _, key := range keys {
		if err := checkSafe(key, values[key]); err != nil {
			return "", err
		}
		b.WriteString("      <" + prefix + ":label name=\"" + key + "\">")
		if err := xml.EscapeText(&b, []byte(values[key])); err != nil {
			return "", err
		}
		b.WriteString("</" + prefix + ":label>\n")
	}
	b.WriteString("    </" + prefix + ":instance>\n  ")
	return b.String(), nil
}

const (
	portKey  = "egress-port"
	staleKey = "egress-stale-lease-"
)

// ReadMetadata reads the element back; managed is false when it is not ours.
// libvirt hands the element out without its namespace's declaration, so only
// local names count, and the decoder must not insist on knowing the prefix.
func ReadMetadata(document string) (m Metadata, managed bool, err error) {
	if strings.TrimSpace(document) == "" {
		return Metadata{}, false, nil
	}
	decoder := xml.NewDecoder(strings.NewReader(document))
	decoder.Strict = false
	values := make(map[string]string)
	for {
		token, err := decoder.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return Metadata{}, false, provider.Transientf("metadata: %w", err)
		}
		start, ok := token.(xml.StartElement)
		if !ok || start.Name.Local != "label" {
			continue
		}
		var label struct {
			Name  string `xml:"name,attr"`
			Value string `xml:",chardata"`
		}
		if err := decoder.DecodeElement(&label, &start); err != nil {
			return Metadata{}, false, provider.Transientf("metadata: %w", err)
		}
		values[label.Name] = label.Value
	}
	m.Labels, managed = provider.LabelsFromMap(values)
	m.Port = atoi(values[portKey])
	for i := 0; values[staleKey+itoa(i)] != ""; i++ {
		m.Stale = append(m.Stale, values[staleKey+itoa(i)])
	}
	return m, managed, nil
}
