package kubernetes

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// volumes writes the pod's volumes below dir and gives for each mount path of
// the container the directory that is there instead.
func (w *worker) volumes(ctx context.Context, dir string) (map[string]string, error) {
	at := make(map[string]string, len(w.pod.Spec.Volumes))
	for _, volume := range w.pod.Spec.Volumes {
		files, err := w.files(ctx, volume)
		if err != nil {
			return nil, fmt.Errorf("volume %s: %w", volume.Name, err)
		}
		at[volume.Name] = filepath.Join(dir, "volumes", volume.Name)
		if err := os.MkdirAll(at[volume.Name], 0o755); err != nil {
			return nil, err
		}
		if err := os.Chmod(at[volume.Name], 0o777); err != nil {
			return nil, err
		}
		for name, content := range files {
			if err := w.write(filepath.Join(at[volume.Name], name), content); err != nil {
				return nil, err
			}
		}
	}
	mounts := make(map[string]string)
	for _, mount := range w.container().VolumeMounts {
		mounts[mount.MountPath] = filepath.Join(at[mount.Name], mount.SubPath)
	}
	return mounts, nil
}

// files is the content of a volume; a Secret or ConfigMap that isn't there is
// an error, as for a kubelet.
func (w *worker) files(ctx context.Context, volume corev1.Volume) (map[string][]byte, error) {
	core := w.n.c.API.CoreV1()
	switch {
	case volume.Secret != nil:
		secret, err := core.Secrets(w.pod.Namespace).Get(ctx, volume.Secret.SecretName, metav1.GetOptions{})
		if err != nil {
			return nil, err
		}
		return secret.Data, nil
	case volume.ConfigMap != nil:
		config, err := core.ConfigMaps(w.pod.Namespace).Get(ctx, volume.ConfigMap.Name, metav1.GetOptions{})
		if err != nil {
			return nil, err
		}
		files := config.BinaryData
		if files == nil {
			files = make(map[string][]byte)
		}
		for name, text := range config.Data {
			files[name] = []byte(text)
		}
		return files, nil
	case volume.EmptyDir != nil:
		return nil, nil
	default:
		return nil, fmt.Errorf("the test's node knows Secrets, ConfigMaps and empty directories alone")
	}
}

// write gives a file to the pod's group, as fsGroup does.
func (w *worker) write(path string, content []byte) error {
	if err := os.WriteFile(path, content, 0o440); err != nil {
		return err
	}
	if user := w.pod.Spec.SecurityContext; os.Getuid() == 0 && user != nil && user.FSGroup != nil {
		return os.Chown(path, 0, int(*user.FSGroup))
	}
	return nil
}

// freeAddress is a loopback address on which nobody uses the pod's ports.
func (w *worker) freeAddress() (string, error) {
	var err error
	for range 20 {
		address := fmt.Sprintf("127.%d.%d.%d", 200+rand.IntN(50), rand.IntN(256), 1+rand.IntN(254))
		if err = w.free(address); err == nil {
			return address, nil
		}
	}
	return "", fmt.Errorf("no loopback address has the pod's ports free: %w", err)
}

func (w *worker) free(address string) error {
	for _, port := range w.container().Ports {
		listener, err := net.Listen("tcp", net.JoinHostPort(address, strconv.Itoa(int(port.ContainerPort))))
		if err != nil {
			return err
		}
		if err := listener.Close(); err != nil {
			return err
		}
	}
	return nil
}
