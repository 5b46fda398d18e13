package kubernetes

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// Archive is an image that is made of files of this machine.
type Archive struct {
	// Name is its name and tag, as pods name it.
	Name string
	// Programs are paths of programs, which take their libraries along.
	Programs []string
	// Files are paths of other files, or directories with all that is in them.
	Files []string
	// Texts are files by their paths that aren't this machine's.
	Texts map[string]string
	// Links are symbolic links by their paths.
	Links map[string]string
	// Entrypoint is its command.
	Entrypoint []string
}

// write writes the archive as `docker save` does: one layer, its configuration,
// and a list of both.
func (a Archive) write(path string) error {
	layer, err := a.layer()
	if err != nil {
		return fmt.Errorf("image %s: %w", a.Name, err)
	}
	config, err := json.Marshal(map[string]any{
		"architecture": "amd64", "os": "linux", "created": "2000-01-01T00:00:00Z",
		"config": map[string]any{"Entrypoint": a.Entrypoint, "Env": []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}, "WorkingDir": "/"},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{"sha256:" + digest(layer)}},
	})
	if err != nil {
		return err
	}
	names := []string{digest(config) + ".json", digest(layer) + "/layer.tar"}
	manifest, err := json.Marshal([]map[string]any{{"Config": names[0], "RepoTags": []string{a.Name}, "Layers": names[1:]}})
	if err != nil {
		return err
	}
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for i, content := range [][]byte{config, layer, manifest} {
		name := append(names, "manifest.json")[i]
		if err := add(w, &tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: int64(len(content))}, content); err != nil {
			return err
		}
	}
	if err := w.Close(); err != nil {
		return err
	}
	return os.WriteFile(path, out.Bytes(), 0o644)
}

func digest(content []byte) string {
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:])
}

func add(w *tar.Writer, header *tar.Header, content []byte) error {
	if err := w.WriteHeader(header); err != nil {
		return err
	}
	_, err := w.Write(content)
	return err
}

// layer is the tar of all files.
func (a Archive) layer() ([]byte, error) {
	paths, err := a.paths()
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, path := range paths {
		content, err := os.ReadFile(path) // what a link points to
		if err != nil {
			return nil, err
		}
		if err := add(w, &tar.Header{Typeflag: tar.TypeReg, Name: path[1:], Mode: 0o755, Size: int64(len(content))}, content); err != nil {
			return nil, err
		}
	}
	for path, text := range a.Texts {
		if err := add(w, &tar.Header{Typeflag: tar.TypeReg, Name: path[1:], Mode: 0o644, Size: int64(len(text))}, []byte(text)); err != nil {
			return nil, err
		}
	}
	for path, target := range a.Links {
		if err := add(w, &tar.Header{Typeflag: tar.TypeSymlink, Name: path[1:], Linkname: target, Mode: 0o777}, nil); err != nil {
			return nil, err
		}
	}
	return out.Bytes(), w.Close()
}

// paths are the files of this machine, with each program's libraries.
func (a Archive) paths() ([]string, error) {
	var paths []string
	for _, program := range a.Programs {
		paths = append(paths, program)
		out, err := exec.Command("ldd", program).CombinedOutput()
		if err != nil && !strings.Contains(string(out), "not a dynamic executable") {
			return nil, fmt.Errorf("ldd %s: %w: %s", program, err, out)
		}
		// "libc.so.6 => /lib/…/libc.so.6 (0x…)", and the loader without "=>".
		for _, field := range strings.Fields(string(out)) {
			if strings.HasPrefix(field, "/") && !strings.HasSuffix(field, ":") {
				paths = append(paths, field)
			}
		}
	}
	for _, root := range a.Files {
		if err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
			if info, statErr := os.Stat(path); err == nil && statErr == nil && info.Mode().IsRegular() {
				paths = append(paths, path)
			}
			return err
		}); err != nil {
			return nil, err
		}
	}
	slices.Sort(paths)
	return slices.Compact(paths), nil
}

// Pause is the image of a pod's sandbox: it does nothing.
func Pause() Archive {
	return Archive{Name: pauseImage, Programs: []string{"/usr/bin/sleep"}, Entrypoint: []string{"/usr/bin/sleep", "infinity"}}
}

const pauseImage = "docker.io/local/pause:1"

// SquidArchive is an image of the machine's squid with a shell, which stands for
// the one of the name.
func SquidArchive(name string) Archive {
	return Archive{
		Name:     name,
		Programs: []string{"/usr/sbin/squid", "/usr/lib/squid/basic_ncsa_auth", "/usr/lib/squid/unlinkd", "/bin/busybox"},
		Files:    []string{"/etc/squid/errorpage.css", "/usr/share/squid/icons", "/usr/share/squid/mime.conf", "/usr/share/squid-langpack/templates", "/usr/share/squid-langpack/en"},
		Texts: map[string]string{
			"/etc/passwd": "root:x:0:0::/:/bin/sh\nproxy:x:13:13::/:/bin/sh\n",
			"/etc/group":  "root:x:0:\nproxy:x:13:\n",
		},
		Links: map[string]string{
			"/usr/share/squid/errors": "../squid-langpack",
			"/bin/sh":                 "busybox", "/bin/cat": "busybox", "/bin/dd": "busybox", "/bin/stty": "busybox", "/bin/id": "busybox",
		},
		Entrypoint: []string{"/usr/sbin/squid", "-N"},
	}
}
