package seed

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io"
	"mime/multipart"
	"net/textproto"
	"strings"
)

// agentScript is a shell script and not a cloud-config: cloud-init drops a key
// of the vendor-data that the user-data also has (runcmd, packages), but it
// always runs a vendor script.
//
//go:embed agent.sh
var agentScript []byte

// maxUnpacked bounds what a gzipped vendor-data may become. cloud-init keeps
// all of it in memory, and so do we.
const maxUnpacked = 16 << 20

// vendorData is the configured vendor-data, the agent's script, or both as a
// MIME archive.
func (d Data) vendorData() ([]byte, error) {
	switch {
	case !d.GuestAgent:
		return d.VendorData, nil
	case len(d.VendorData) == 0:
		return agentScript, nil
	}
	configured, err := unpack(d.VendorData)
	if err != nil {
		return nil, err
	}
	return archive(configured, agentScript)
}

// unpack removes gzip, since the type of a part depends on what is inside.
func unpack(data []byte) ([]byte, error) {
	if !bytes.HasPrefix(data, []byte{0x1f, 0x8b}) {
		return data, nil
	}
	z, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		return nil, fmt.Errorf("seed: vendor-data starts like gzip: %w", err)
	}
	plain, err := io.ReadAll(io.LimitReader(z, maxUnpacked+1))
	if err != nil {
		return nil, fmt.Errorf("seed: gzipped vendor-data: %w", err)
	}
	if len(plain) > maxUnpacked {
		return nil, fmt.Errorf("seed: gzipped vendor-data: more than %d bytes when unpacked", maxUnpacked)
	}
	return plain, nil
}

// archive joins parts in their order. Contents are base64, so that no line end
// or charset is touched on the way.
func archive(parts ...[]byte) ([]byte, error) {
	var body bytes.Buffer
	w := multipart.NewWriter(&body)
	// The boundary follows from the contents: the same data gives the same
	// seed, and an archive within the archive can't contain it.
	sum := sha256.Sum256(bytes.Join(parts, []byte{0}))
	boundary := "egress-" + hex.EncodeToString(sum[:16])
	if err := w.SetBoundary(boundary); err != nil {
		return nil, err
	}
	fmt.Fprintf(&body, "Content-Type: multipart/mixed; boundary=%q\nMIME-Version: 1.0\n\n", boundary)
	for _, content := range parts {
		if err := addPart(w, content); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return body.Bytes(), nil
}

func addPart(w *multipart.Writer, content []byte) error {
	if isMIME(content) {
		return addMessage(w, content)
	}
	part, err := w.CreatePart(textproto.MIMEHeader{
		"Content-Type":              {contentType(content)},
		"Content-Transfer-Encoding": {"base64"},
		"MIME-Version":              {"1.0"},
	})
	if err != nil {
		return err
	}
	encoded := base64.StdEncoding.EncodeToString(content)
	for len(encoded) > 76 { // RFC 2045, 6.8
		fmt.Fprintf(part, "%s\n", encoded[:76])
		encoded = encoded[76:]
	}
	_, err = fmt.Fprintf(part, "%s\n", encoded)
	return err
}

// addMessage nests an archive: its own headers become those of the part, which
// is how MIME, and cloud-init's walk over it, nest.
func addMessage(w *multipart.Writer, message []byte) error {
	header, body, found := cutHeader(message)
	if !found {
		return fmt.Errorf("seed: MIME vendor-data: no empty line after its headers")
	}
	fields := textproto.MIMEHeader{}
	for _, line := range unfold(header) {
		// A mailbox's "From " line is not a header.
		if key, value, ok := strings.Cut(line, ":"); ok && !strings.Contains(key, " ") {
			fields.Add(key, strings.TrimSpace(value))
		}
	}
	part, err := w.CreatePart(fields)
	if err != nil {
		return err
	}
	_, err = part.Write(body)
	return err
}

// cutHeader splits a message at its first empty line.
func cutHeader(message []byte) (header string, body []byte, found bool) {
	text := string(message)
	for _, gap := range []string{"\r\n\r\n", "\n\n"} {
		if before, after, ok := strings.Cut(text, gap); ok && (!found || len(before) < len(header)) {
			header, body, found = before, []byte(after), true
		}
	}
	return header, body, found
}

// unfold joins the continuation lines of RFC 5322, 2.2.3.
func unfold(header string) []string {
	var lines []string
	for line := range strings.Lines(header) {
		line = strings.TrimRight(line, "\r\n")
		if n := len(lines); n > 0 && line != "" && (line[0] == ' ' || line[0] == '\t') {
			lines[n-1] += " " + strings.TrimSpace(line)
			continue
		}
		lines = append(lines, line)
	}
	return lines
}

// isMIME is cloud-init's own test.
func isMIME(content []byte) bool {
	return bytes.Contains(bytes.ToLower(content[:min(len(content), 4096)]), []byte("mime-version:"))
}

// The first bytes by which cloud-init knows a format, the longer before the
// shorter.
var formats = []struct{ prefix, contentType string }{
	{"## template: jinja", "text/jinja2"},
	{"#cloud-config-archive", "text/cloud-config-archive"},
	{"#cloud-config-jsonp", "text/cloud-config-jsonp"},
	{"#cloud-config", "text/cloud-config"},
	{"#cloud-boothook", "text/cloud-boothook"},
	{"#part-handler", "text/part-handler"},
	{"#include-once", "text/x-include-once-url"},
	{"#include", "text/x-include-url"},
	{"#!", "text/x-shellscript"},
}

// contentType of a part; text/plain leaves it to cloud-init.
func contentType(content []byte) string {
	for _, f := range formats {
		if bytes.HasPrefix(content, []byte(f.prefix)) {
			return f.contentType
		}
	}
	return "text/plain"
}
