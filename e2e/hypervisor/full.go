package hypervisor

import (
	"context"
	"embed"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
)

//go:embed full/build.sh full/initrd.sh full/cloud.cfg
var fullInputs embed.FS

// FullGuest is the path of an image of Debian 12 as clouds have it, built on
// first use, which takes minutes that progress is told of: systemd, cloud-init,
// an SSH server, and squid and the guest agent to be installed from a source
// within the guest. It is kept beside the micro guest's image.
func FullGuest(ctx context.Context, progress io.Writer) (string, error) {
	image, err := cached(ctx, "full", fullInputs, func(ctx context.Context, dir, image string) error {
		return buildFull(ctx, dir, image, progress)
	})
	if err != nil {
		return "", fmt.Errorf("full guest: %w", err)
	}
	return image, nil
}

func buildFull(ctx context.Context, dir, image string, progress io.Writer) error {
	work, err := os.MkdirTemp(dir, "build-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	fmt.Fprintln(progress, "building the full guest, once")
	_, self, _, _ := runtime.Caller(0)
	files, made := filepath.Join(work, "files"), filepath.Join(work, "image")
	if err := os.Mkdir(files, 0o755); err != nil {
		return err
	}
	script := exec.CommandContext(ctx, "bash", filepath.Join(filepath.Dir(self), "full", "build.sh"), files, made)
	script.Stdout, script.Stderr = progress, progress
	if err := script.Run(); err != nil {
		return fmt.Errorf("full/build.sh: %w; the packages that it needs are in e2e/hypervisor/full/packages.txt", err)
	}
	return os.Rename(made, image)
}
