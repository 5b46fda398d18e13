package driver

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/hashicorp/nomad/plugins/drivers"

	"github.com/egress-proxies/egress/provider"
)

// maxUserData is far more than any place takes (libvirt's seed has no limit,
// Compute Engine takes 256 KiB), and keeps a wrong path from filling memory.
const maxUserData = 4 << 20

// newSpec translates a task into what a provider launches.
func newSpec(cluster string, cfg *drivers.TaskConfig, task taskConfig, place *place, auth provider.Credentials) (
	provider.Spec, listener, error,
) {
	listener, err := listenerOf(task, place, cfg.Resources)
	if err != nil {
		return provider.Spec{}, listener, err
	}
	userData, err := userData(cfg, task)
	if err != nil {
		return provider.Spec{}, listener, err
	}
	spec := provider.Spec{
		Name: provider.Name(cluster, cfg.AllocID, cfg.Name),
		Labels: provider.Labels{
			Cluster:   cluster,
			Namespace: cfg.Namespace,
			Job:       cfg.JobID,
			Group:     cfg.TaskGroupName,
			Alloc:     cfg.AllocID,
			Task:      cfg.Name,
			Node:      cfg.NodeID,
			CreatedAt: time.Now().UTC().Truncate(time.Second),
		},
		Zone:          task.Zone,
		MachineType:   task.MachineType,
		Image:         task.Image,
		Port:          listener.port,
		UserData:      userData,
		NetworkConfig: []byte(task.NetworkConfig),
		Command:       task.Command,
		Args:          task.Args,
		Env:           cfg.EnvList(),
		Dir:           cfg.TaskDir().Dir,
		User:          cfg.User,
		Auth:          auth,
		Endpoint:      task.Endpoint,
		Bind:          task.Bind,
		Resources:     resources(cfg.Resources),
	}
	if place.onNode() {
		spec.Listen = listener.host
	}
	return spec, listener, nil
}

func listenerOf(task taskConfig, place *place, resources *drivers.Resources) (listener, error) {
	if place.kind == "external" {
		return listener{port: task.Endpoint.Port}, nil
	}
	return resolvePort(task.Port, place, resources)
}

func resources(from *drivers.Resources) provider.Resources {
	var size provider.Resources
	if from == nil {
		return size
	}
	if nomad := from.NomadResources; nomad != nil {
		size.CPUMHz = nomad.Cpu.CpuShares
		size.MemoryMiB = nomad.Memory.MemoryMB
		size.Cores = len(nomad.Cpu.ReservedCores)
	}
	// Reserved cores reach a plugin as a cpuset only.
	if linux := from.LinuxResources; linux != nil && size.Cores == 0 && linux.CpusetCpus != "" {
		size.Cores = len(strings.Split(linux.CpusetCpus, ","))
	}
	return size
}

// userData gives the task's user-data, byte for byte.
func userData(cfg *drivers.TaskConfig, task taskConfig) ([]byte, error) {
	if task.UserDataFile == "" {
		return []byte(task.UserData), nil
	}
	content, err := readInAlloc(cfg, task.UserDataFile)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, provider.Permanentf("user_data_file %q: no such file in the task's directory: want one that a template"+
			` or an artifact of the task makes, such as "local/user-data"`, task.UserDataFile)
	case err != nil:
		return nil, provider.Permanentf("user_data_file %q: %w", task.UserDataFile, err)
	}
	return content, nil
}

// readInAlloc reads a file below the allocation's directory. The plugin runs as
// root, so that neither a path nor a symbolic link may lead out of it: whoever
// may submit a job could read any file of the node otherwise.
func readInAlloc(cfg *drivers.TaskConfig, path string) ([]byte, error) {
	inside := filepath.Join(cfg.Name, path)
	if filepath.IsAbs(path) {
		relative, err := filepath.Rel(cfg.AllocDir, path)
		if err != nil {
			return nil, err
		}
		inside = relative
	}
	root, err := os.OpenRoot(cfg.AllocDir)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	// Without O_NONBLOCK, a FIFO that the task made would hold the start for ever.
	file, err := root.OpenFile(inside, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	if info, err := file.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil, errors.Join(errors.New("want a regular file"), err)
	}
	content, err := io.ReadAll(io.LimitReader(file, maxUserData+1))
	if err != nil {
		return nil, err
	}
	if len(content) > maxUserData {
		return nil, fmt.Errorf("want at most %d MiB", maxUserData>>20)
	}
	return content, nil
}
