package main

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"fmt"
	"io"
	"mime"
	"mime/multipart"
	"net/mail"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
	"golang.org/x/sys/unix"
)

// config is the part of a cloud-config that tests use.
type config struct {
	Hostname   string      `yaml:"hostname"`
	Bootcmd    []any       `yaml:"bootcmd"`
	Runcmd     []any       `yaml:"runcmd"`
	WriteFiles []writeFile `yaml:"write_files"`
	scripts    [][]byte
}

type writeFile struct {
	Path        string `yaml:"path"`
	Content     string `yaml:"content"`
	Encoding    string `yaml:"encoding"`
	Permissions string `yaml:"permissions"`
}

// over lays the user's config over the vendor's: as cloud-init does, key by
// key, lists included, except that every script runs.
func (c config) over(vendor config) config {
	if c.Hostname == "" {
		c.Hostname = vendor.Hostname
	}
	if c.Bootcmd == nil {
		c.Bootcmd = vendor.Bootcmd
	}
	if c.Runcmd == nil {
		c.Runcmd = vendor.Runcmd
	}
	if c.WriteFiles == nil {
		c.WriteFiles = vendor.WriteFiles
	}
	c.scripts = append(vendor.scripts, c.scripts...)
	return c
}

// parse reads user-data or vendor-data in any of the formats that tests use.
func parse(data []byte) (config, error) {
	switch {
	case len(bytes.TrimSpace(data)) == 0:
		return config{}, nil
	case bytes.HasPrefix(data, []byte{0x1f, 0x8b}):
		z, err := gzip.NewReader(bytes.NewReader(data))
		if err != nil {
			return config{}, err
		}
		plain, err := io.ReadAll(z)
		if err != nil {
			return config{}, err
		}
		return parse(plain)
	case bytes.HasPrefix(data, []byte("#!")):
		return config{scripts: [][]byte{data}}, nil
	case bytes.HasPrefix(data, []byte("#cloud-config")):
		var c config
		return c, yaml.Unmarshal(data, &c)
	case bytes.Contains(bytes.ToLower(data[:min(len(data), 4096)]), []byte("mime-version:")):
		m, err := mail.ReadMessage(bufio.NewReader(bytes.NewReader(data)))
		if err != nil {
			return config{}, err
		}
		return parsePart(m.Header.Get("Content-Type"), m.Header.Get("Content-Transfer-Encoding"), m.Body)
	default:
		return config{}, fmt.Errorf("unknown format %.20q", data)
	}
}

// parsePart reads one MIME part, or all those within it.
func parsePart(contentType, encoding string, body io.Reader) (config, error) {
	kind, params, err := mime.ParseMediaType(contentType)
	if err != nil {
		return config{}, err
	}
	if !strings.HasPrefix(kind, "multipart/") {
		if strings.EqualFold(encoding, "base64") {
			body = base64.NewDecoder(base64.StdEncoding, body)
		}
		data, err := io.ReadAll(body)
		if err != nil {
			return config{}, err
		}
		return parse(data)
	}
	var all config
	for r := multipart.NewReader(body, params["boundary"]); ; {
		part, err := r.NextRawPart()
		if err == io.EOF {
			return all, nil
		}
		if err != nil {
			return all, err
		}
		c, err := parsePart(part.Header.Get("Content-Type"), part.Header.Get("Content-Transfer-Encoding"), part)
		if err != nil {
			return all, err
		}
		all = c.over(all)
	}
}

// configure does what the seed says; its commands wait for the network.
func configure(up <-chan struct{}) {
	if !mountSeed("/run/seed") {
		say("no seed disk")
		return
	}
	var meta struct {
		InstanceID string `yaml:"instance-id"`
		Hostname   string `yaml:"local-hostname"`
	}
	_ = yaml.Unmarshal([]byte(read("/run/seed/meta-data")), &meta)
	say("seed of %s", meta.InstanceID)
	var configs [2]config
	for i, name := range []string{"user-data", "vendor-data"} {
		data, _ := os.ReadFile("/run/seed/" + name)
		c, err := parse(data)
		if err != nil {
			say("%s: %v", name, err)
		}
		configs[i] = c
	}
	c := configs[0].over(configs[1])
	if c.Hostname == "" {
		c.Hostname = meta.Hostname
	}
	_ = unix.Sethostname([]byte(c.Hostname))
	for _, f := range c.WriteFiles {
		if err := f.write(); err != nil {
			say("write_files %s: %v", f.Path, err)
		}
	}
	command(c.Bootcmd)
	<-up
	command(c.Runcmd)
	for i, script := range c.scripts {
		path := fmt.Sprintf("/run/script-%d", i)
		if err := os.WriteFile(path, script, 0o700); err != nil {
			say("%s: %v", path, err)
			continue
		}
		_ = run(path)
	}
	say("seed done, host name %s", c.Hostname)
}

// command runs the entries of bootcmd or runcmd: a string for the shell, or a
// list of arguments.
func command(list []any) {
	for _, entry := range list {
		argv := []string{"/bin/sh", "-c", fmt.Sprint(entry)}
		if args, ok := entry.([]any); ok {
			argv = []string{"/usr/bin/env"}
			for _, arg := range args {
				argv = append(argv, fmt.Sprint(arg))
			}
		}
		_ = run(argv...)
	}
}

func (f writeFile) write() error {
	content := []byte(f.Content)
	if f.Encoding == "b64" || f.Encoding == "base64" {
		decoded, err := base64.StdEncoding.DecodeString(strings.Join(strings.Fields(f.Content), ""))
		if err != nil {
			return err
		}
		content = decoded
	}
	mode := os.FileMode(0o644)
	if n, err := strconv.ParseUint(f.Permissions, 8, 12); err == nil {
		mode = os.FileMode(n)
	}
	if err := os.MkdirAll(filepath.Dir(f.Path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(f.Path, content, mode)
}

// mountSeed finds the disk that is labelled cidata, on whatever bus, and mounts
// it.
func mountSeed(dir string) bool {
	_ = os.MkdirAll(dir, 0o755)
	return try(10*time.Second, func() bool {
		for _, pattern := range []string{"/dev/vd?", "/dev/sr?", "/dev/sd?"} {
			devices, _ := filepath.Glob(pattern)
			for _, device := range devices {
				if isSeed(device) && unix.Mount(device, dir, "iso9660", unix.MS_RDONLY, "") == nil {
					say("seed disk is %s", device)
					return true
				}
			}
		}
		return false
	})
}

// isSeed reads the volume label of an ISO 9660 primary descriptor.
func isSeed(device string) bool {
	f, err := os.Open(device)
	if err != nil {
		return false
	}
	defer f.Close()
	b := make([]byte, 72)
	if _, err := f.ReadAt(b, 32768); err != nil {
		return false
	}
	return string(b[1:6]) == "CD001" && strings.EqualFold(strings.TrimSpace(string(b[40:72])), "cidata")
}
