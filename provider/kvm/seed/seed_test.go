package seed

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/kdomanski/iso9660"
)

// read builds the image and reads it back as a guest does.
func read(t *testing.T, d Data) map[string]string {
	t.Helper()
	var image bytes.Buffer
	if err := Build(&image, d); err != nil {
		t.Fatal(err)
	}
	opened, err := iso9660.OpenImage(bytes.NewReader(image.Bytes()))
	if err != nil {
		t.Fatal(err)
	}
	if label, err := opened.Label(); err != nil || label != "cidata" {
		t.Fatalf("label is %q, %v; want cidata", label, err)
	}
	root, err := opened.RootDir()
	if err != nil {
		t.Fatal(err)
	}
	children, err := root.GetChildren()
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for _, f := range children {
		content, err := io.ReadAll(f.Reader())
		if err != nil {
			t.Fatal(err)
		}
		files[f.Name()] = string(content)
	}
	return files
}

func data() Data { return Data{InstanceID: "eg-1", Hostname: "proxy-1"} }

func TestIncompleteDataIsRefused(t *testing.T) {
	for name, d := range map[string]Data{
		"no instance id": {Hostname: "h"},
		"no host name":   {InstanceID: "i"},
		"broken gzip":    {InstanceID: "i", Hostname: "h", GuestAgent: true, VendorData: []byte("\x1f\x8bnope")},
		"MIME without body": {InstanceID: "i", Hostname: "h", GuestAgent: true,
			VendorData: []byte("MIME-Version: 1.0\nContent-Type: text/plain")},
	} {
		if err := Build(io.Discard, d); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestUserDataIsUnchangedInEveryFormat(t *testing.T) {
	formats := map[string][]byte{
		"cloud-config": []byte("#cloud-config\nruncmd: [ id ]\n"),
		"jinja":        []byte("## template: jinja\n#cloud-config\nfqdn: {{ v1.instance_id }}\n"),
		"mime":         []byte("Content-Type: multipart/mixed; boundary=\"b\"\r\nMIME-Version: 1.0\r\n\r\n--b--\r\n"),
		"gzip":         {0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3, 0xff, 0xfe, 0},
		"script":       []byte("#!/bin/sh\r\necho no newline at end"),
		"include":      []byte("#include\nhttp://10.0.0.1/user-data\n"),
		"empty":        {},
		"one sector":   bytes.Repeat([]byte{'x'}, 2048),
		"large":        bytes.Repeat([]byte("0123456789\x00"), 20000),
	}
	for name, userData := range formats {
		for _, agent := range []bool{false, true} {
			d := data()
			d.UserData, d.GuestAgent = userData, agent
			d.VendorData = []byte("#cloud-config\n{}\n")
			if got := read(t, d)["user-data"]; got != string(userData) {
				t.Errorf("%s, agent %v: user-data changed", name, agent)
			}
		}
	}
}

func TestFilesThatAreThere(t *testing.T) {
	d := data()
	files := read(t, d)
	if len(files) != 2 || !strings.Contains(files["meta-data"], `"instance-id": "eg-1"`) ||
		!strings.Contains(files["meta-data"], `"local-hostname": "proxy-1"`) {
		t.Errorf("least seed is %v", files)
	}
	d.NetworkConfig = []byte("version: 2\n")
	d.VendorData = []byte("#cloud-config\n")
	files = read(t, d)
	if len(files) != 4 || files["network-config"] != "version: 2\n" || files["vendor-data"] != "#cloud-config\n" {
		t.Errorf("full seed is %v", files)
	}
}

func TestMetaDataCannotBeBrokenOutOf(t *testing.T) {
	d := data()
	d.Hostname = "x\"\ninstance-id: other"
	if meta := read(t, d)["meta-data"]; strings.Count(meta, "\n") != 4 {
		t.Errorf("a host name made lines of its own: %s", meta)
	}
}

func TestSecretsAreNotPrinted(t *testing.T) {
	d := data()
	d.UserData, d.VendorData, d.NetworkConfig = []byte("geheim"), []byte("geheim"), []byte("geheim")
	for _, verb := range []string{"%v", "%+v", "%#v", "%s"} {
		if got := fmt.Sprintf(verb, d); strings.Contains(got, "geheim") || strings.Contains(got, "103") {
			t.Errorf("%s prints %s", verb, got)
		}
	}
}

func TestNothingStaysInTheTemporaryDirectory(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)
	d := data()
	d.UserData = []byte("secret")
	if err := Build(failing{}, d); err == nil {
		t.Error("a failed write was no error")
	}
	read(t, d)
	if left, _ := os.ReadDir(dir); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}

type failing struct{}

func (failing) Write([]byte) (int, error) { return 0, io.ErrShortWrite }
