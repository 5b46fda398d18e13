// Package hypervisor makes the guest that tests boot on real hypervisors.
package hypervisor

import (
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
)

// inputs are all that the image is made of, apart from Debian's packages.
//
//go:embed guest/build.sh guest/init/*.go
var inputs embed.FS

// Guest is the path of the micro guest's image, built on first use: qcow2, for
// BIOS and UEFI, with a proxy on port 3128 and the guest agent. It is kept in
// $EGRESS_CACHE (default ~/.cache/egress) under a name made of its inputs;
// programs that ask for it at once wait for the one that builds it.
func Guest(ctx context.Context) (string, error) {
	image, err := cached(ctx, "micro", inputs, build)
	if err != nil {
		return "", fmt.Errorf("micro guest: %w", err)
	}
	return image, nil
}

// cached is the path of the image that is made of inputs, which make puts in
// place, in the directory dir, when it isn't there.
func cached(ctx context.Context, name string, inputs fs.FS, make func(ctx context.Context, dir, image string) error) (string, error) {
	dir, err := cacheDir()
	if err != nil {
		return "", err
	}
	key, err := inputsKey(inputs)
	if err != nil {
		return "", err
	}
	image := filepath.Join(dir, name+"-"+key+".qcow2")
	lock, err := os.OpenFile(filepath.Join(dir, name+".lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return "", err
	}
	defer lock.Close() // which unlocks
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return "", fmt.Errorf("lock %s: %w", lock.Name(), err)
	}
	if _, err := os.Stat(image); !errors.Is(err, fs.ErrNotExist) {
		return image, err
	}
	return image, make(ctx, dir, image)
}

func cacheDir() (string, error) {
	dir := os.Getenv("EGRESS_CACHE")
	if dir == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			return "", err
		}
		dir = filepath.Join(home, ".cache", "egress")
	}
	dir = filepath.Join(dir, "guest")
	return dir, os.MkdirAll(dir, 0o755)
}

// inputsKey changes whenever the image would.
func inputsKey(inputs fs.FS) (string, error) {
	sum := sha256.New()
	err := fs.WalkDir(inputs, ".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || strings.HasSuffix(path, "_test.go") {
			return err
		}
		content, err := fs.ReadFile(inputs, path)
		fmt.Fprintf(sum, "%s %d\n%s", path, len(content), content)
		return err
	})
	return hex.EncodeToString(sum.Sum(nil))[:12], err
}

// build makes the image in a directory of its own and puts it in place whole.
func build(ctx context.Context, dir, image string) error {
	work, err := os.MkdirTemp(dir, "build-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	_, self, _, _ := runtime.Caller(0)
	sources := filepath.Join(filepath.Dir(self), "guest")
	program := filepath.Join(work, "init")
	compile := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w", "-o", program, ".")
	compile.Dir = filepath.Join(sources, "init")
	compile.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := compile.CombinedOutput(); err != nil {
		return fmt.Errorf("build init: %w\n%s", err, out)
	}
	files := filepath.Join(work, "files")
	if err := os.Mkdir(files, 0o755); err != nil {
		return err
	}
	made := filepath.Join(work, "image")
	script := exec.CommandContext(ctx, "bash", filepath.Join(sources, "build.sh"), program, files, made)
	if out, err := script.CombinedOutput(); err != nil {
		return fmt.Errorf("build.sh: %w\n%s\nthe packages that it needs are in e2e/hypervisor/packages.txt", err, out)
	}
	return os.Rename(made, image)
}
