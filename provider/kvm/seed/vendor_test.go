package seed

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"io"
	"mime"
	"mime/multipart"
	"net/mail"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// part is one leaf of a MIME archive.
type part struct{ contentType, content string }

// parts walks a MIME archive as cloud-init does: containers are passed over.
func parts(t *testing.T, message string) []part {
	t.Helper()
	m, err := mail.ReadMessage(strings.NewReader(message))
	if err != nil {
		t.Fatal(err)
	}
	return walk(t, m.Header.Get("Content-Type"), m.Header.Get("Content-Transfer-Encoding"), m.Body)
}

func walk(t *testing.T, contentType, encoding string, body io.Reader) []part {
	t.Helper()
	kind, params, err := mime.ParseMediaType(contentType)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(kind, "multipart/") {
		if encoding == "base64" {
			body = base64.NewDecoder(base64.StdEncoding, body)
		}
		content, err := io.ReadAll(body)
		if err != nil {
			t.Fatal(err)
		}
		return []part{{kind, string(content)}}
	}
	var all []part
	for r := multipart.NewReader(body, params["boundary"]); ; {
		p, err := r.NextRawPart()
		if err == io.EOF {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, walk(t, p.Header.Get("Content-Type"), p.Header.Get("Content-Transfer-Encoding"), p)...)
	}
}

func gzipped(s string) []byte {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	io.WriteString(z, s)
	z.Close()
	return b.Bytes()
}

func TestAgentScriptAloneIsAScript(t *testing.T) {
	d := data()
	d.GuestAgent = true
	if got := read(t, d)["vendor-data"]; got != string(agentScript) || !strings.HasPrefix(got, "#!") {
		t.Errorf("vendor-data is %q", got)
	}
}

func TestAgentScriptStandsBesideConfiguredVendorData(t *testing.T) {
	config := "#cloud-config\nruncmd: [ 'echo ä' ]\r\n"
	nested := "From nobody Mon Jan  1 00:00:00 2024\nContent-Type: multipart/mixed;\n boundary=\"inner\"\nMIME-Version: 1.0\n\n" +
		"--inner\nContent-Type: text/cloud-config\n\n#cloud-config\n{}\n--inner--\n"
	for _, c := range []struct {
		name   string
		vendor []byte
		want   part
	}{
		{"a gzipped archive", gzipped(nested), part{"text/cloud-config", "#cloud-config\n{}"}},
		{"an archive", []byte(nested), part{"text/cloud-config", "#cloud-config\n{}"}},
		{"an archive with CRLF", []byte(strings.ReplaceAll(nested, "\n", "\r\n")), part{"text/cloud-config", "#cloud-config\r\n{}"}},
		{"gzip", gzipped(config), part{"text/cloud-config", config}},
		{"cloud-config", []byte(config), part{"text/cloud-config", config}},
		{"an archive of configs", []byte("#cloud-config-archive\n[]\n"), part{"text/cloud-config-archive", "#cloud-config-archive\n[]\n"}},
		{"jinja", []byte("## template: jinja\n#cloud-config\n"), part{"text/jinja2", "## template: jinja\n#cloud-config\n"}},
		{"a script", []byte("#!/bin/sh\n\x00\xff"), part{"text/x-shellscript", "#!/bin/sh\n\x00\xff"}},
		{"an include", []byte("#include\nhttp://x/\n"), part{"text/x-include-url", "#include\nhttp://x/\n"}},
		{"something else", []byte("hello"), part{"text/plain", "hello"}},
	} {
		d := data()
		d.GuestAgent, d.VendorData = true, c.vendor
		got := parts(t, read(t, d)["vendor-data"])
		if len(got) != 2 || got[0] != c.want || got[1] != (part{"text/x-shellscript", string(agentScript)}) {
			t.Errorf("%s: parts are %q", c.name, got)
		}
	}
}

func TestGzippedVendorDataIsBounded(t *testing.T) {
	d := data()
	d.GuestAgent, d.VendorData = true, gzipped(strings.Repeat("0", maxUnpacked+1))
	if err := Build(io.Discard, d); err == nil || !strings.Contains(err.Error(), "16777216") {
		t.Errorf("got %v", err)
	}
}

// The script is run with a package manager and a service manager that only
// write down what they were asked.
func TestAgentScriptInstallsAndStarts(t *testing.T) {
	for _, c := range []struct {
		manager, want string
	}{
		{"none", "egress: could not install qemu-guest-agent"},
		{"apt-get", "apt-get -o DPkg::Lock::Timeout=300 install -q -y --no-install-recommends qemu-guest-agent"},
		{"dnf", "dnf -q -y install qemu-guest-agent"},
		{"apk", "apk add -q qemu-guest-agent"},
	} {
		bin := t.TempDir()
		for _, tool := range []string{c.manager, "systemctl"} {
			stub := "#!/bin/sh\necho " + tool + " \"$@\"\n"
			if err := os.WriteFile(filepath.Join(bin, tool), []byte(stub), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		cmd := exec.Command("/bin/sh")
		cmd.Stdin = bytes.NewReader(agentScript)
		cmd.Env = []string{"PATH=" + bin}
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Errorf("%s: %v", c.manager, err)
		}
		for _, want := range []string{c.want, "systemctl start qemu-guest-agent.service"} {
			if !strings.Contains(string(out), want+"\n") {
				t.Errorf("%s: %q lacks %q", c.manager, out, want)
			}
		}
	}
}

func FuzzArchiveKeepsItsParts(f *testing.F) {
	f.Add([]byte("#cloud-config\n"))
	f.Add([]byte("MIME-Version: 1.0\nContent-Type: text/plain\n\nx"))
	f.Add([]byte("\x1f\x8b"))
	f.Fuzz(func(t *testing.T, vendor []byte) {
		d := data()
		d.GuestAgent, d.VendorData = true, vendor
		out, err := d.vendorData()
		if err != nil || len(vendor) == 0 || isMIME(vendor) || bytes.HasPrefix(vendor, []byte{0x1f, 0x8b}) {
			return // refused, alone, or nested: only no panic is asked for
		}
		if got := parts(t, string(out)); len(got) != 2 || got[0].content != string(vendor) {
			t.Errorf("%q became %q", vendor, got)
		}
	})
}
