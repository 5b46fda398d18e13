package kubernetes

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// Container is what an image is given to make a process of.
type Container struct {
	corev1.Container
	// Address is the pod's. What listens must listen there, and what connects
	// must connect from there: the pod has no network of its own.
	Address string
	// Dir is a directory of the pod's own.
	Dir string
	// Mounts gives for each mount path the directory that is there instead.
	Mounts map[string]string
}

// Image makes the command of a container.
type Image func(Container) (*exec.Cmd, error)

// Program is an image whose entry point is a program of this machine. An
// argument ":PORT" becomes the pod's address and that port.
func Program(path string, entry ...string) Image {
	return func(c Container) (*exec.Cmd, error) {
		// Its account may not be able to read the path of the original.
		mine := filepath.Join(c.Dir, filepath.Base(path))
		if err := place(path, mine); err != nil {
			return nil, err
		}
		command := append([]string{mine}, entry...)
		if len(c.Command) > 0 {
			command = append([]string{mine}, c.Command[1:]...)
		}
		for _, arg := range c.Args {
			command = append(command, listenPort.ReplaceAllString(c.inside(arg), "${1}"+c.Address+":$2"))
		}
		return exec.Command(command[0], command[1:]...), nil
	}
}

var listenPort = regexp.MustCompile(`^((?:--?[a-z-]+=)?):([0-9]+)$`)

// Squid is an image with the machine's squid, run with the configuration that
// the container's arguments name.
func Squid(program string) Image {
	return func(c Container) (*exec.Cmd, error) {
		if len(c.Command) == 0 {
			return nil, fmt.Errorf("no command: the image's own would run squid with its defaults")
		}
		args := append(append([]string{}, c.Command[1:]...), c.Args...)
		for i, arg := range args {
			args[i] = c.inside(arg)
			if !strings.HasSuffix(arg, ".conf") {
				continue
			}
			text, err := os.ReadFile(args[i])
			if err != nil {
				return nil, err
			}
			conf := httpPort.ReplaceAllString(c.inside(string(text)), "http_port "+c.Address+":$1") +
				"tcp_outgoing_address " + c.Address + "\n"
			args[i] = filepath.Join(c.Dir, filepath.Base(arg))
			if err := os.WriteFile(args[i], []byte(conf), 0o644); err != nil {
				return nil, err
			}
		}
		return exec.Command(program, args...), nil
	}
}

var httpPort = regexp.MustCompile(`(?m)^http_port ([0-9]+)`)

// inside replaces the container's mount paths in a text by what is there.
func (c Container) inside(text string) string {
	var pairs []string
	for path, dir := range c.Mounts {
		pairs = append(pairs, path+"/", dir+"/")
	}
	return strings.NewReplacer(pairs...).Replace(text) // once: a directory may lie below another path
}

func place(from, to string) error {
	_ = os.Remove(to)
	if os.Link(from, to) == nil {
		return nil
	}
	data, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, data, 0o755)
}
