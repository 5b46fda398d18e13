package e2e_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	nomad "github.com/hashicorp/nomad/api"

	"github.com/egress-proxies/egress/jobs"
	"github.com/egress-proxies/egress/provider/kvm/domain"
)

// A bootless hypervisor is real, and so are its machines; only what runs in them
// is nothing: their disk has no system, which is quick. So that their tasks run
// all the same, the test writes the leases that a DHCP server would.

// bootlessNetwork gives libvirt a range to believe leases of.
const bootlessNetwork = `<network><name>default</name><bridge name="egbr0"/>
<ip address="10.78.0.1" netmask="255.255.255.0"><dhcp><range start="10.78.0.2" end="10.78.0.254"/></dhcp></ip></network>`

// bootless is a hypervisor of the given name whose pool "default" has a size. env
// is for hostScript.
func bootless(t *testing.T, name string, poolMiB int, env ...string) *libvirtHost {
	t.Helper()
	h := bareHypervisor(t, func(h *libvirtHost) {
		h.env = append(env, "HOST_NAME="+name)
		h.mountPool("default", poolMiB)
		h.mountPool("tight", 400)
	}, "--uts")
	h.pool("default")
	h.virsh("pool-start", "default")
	h.virsh("pool-autostart", "default")
	h.network(bootlessNetwork)
	h.lend()
	return h
}

// lend lends each machine that runs an address, until the test ends.
func (h *libvirtHost) lend() {
	stop, stopped := make(chan struct{}), make(chan struct{})
	h.t.Cleanup(func() { close(stop); <-stopped })
	go func() {
		defer close(stopped)
		pause := time.NewTicker(50 * time.Millisecond)
		defer pause.Stop()
		var last []byte
		for {
			select {
			case <-stop:
				return
			case <-pause.C:
			}
			if h.silent.Load() {
				continue
			}
			if leases := h.leases(); !bytes.Equal(leases, last) {
				file := filepath.Join(h.dir, "state/var/lib/libvirt/dnsmasq/egbr0.status")
				if os.WriteFile(file+".new", leases, 0o644) == nil && os.Rename(file+".new", file) == nil {
					last = leases
				}
			}
		}
	}()
}

// leases is a lease for each machine that runs, as libvirt's own helper of
// dnsmasq writes it.
func (h *libvirtHost) leases() []byte {
	running, _ := filepath.Glob(filepath.Join(h.dir, "state/run/libvirt/qemu/eg-*.xml"))
	leases := []map[string]any{}
	for _, file := range running {
		name := strings.TrimSuffix(filepath.Base(file), ".xml")
		mac := domain.MAC(name)
		var last int
		_, _ = fmt.Sscanf(mac[len(mac)-2:], "%x", &last)
		leases = append(leases, map[string]any{
			"ip-address": fmt.Sprintf("10.78.0.%d", 2+last%250), "mac-address": mac, "expiry-time": 4000000000,
		})
	}
	text, _ := json.Marshal(leases) // of strings and numbers
	return text
}

// bootlessDisk is an image without a system.
func bootlessDisk(t *testing.T) (content []byte) {
	t.Helper()
	content = bytes.Repeat([]byte{0, 1, 0xFE, 0xFF}, 64<<10)
	content[510], content[511] = 0x55, 0xAA
	copy(content, []byte{0xF4, 0xEB, 0xFD}) // halt, and halt again
	return content
}

// machines submits the jobspec for machines, whose proxies nobody probes.
func (f *fixture) machines(id string, variables map[string]string) {
	f.t.Helper()
	all := map[string]string{"name": id, "service": f.name, "kill_timeout": "1s", "user_data": "#cloud-config\n"}
	for key, value := range variables {
		all[key] = value
	}
	job, err := jobs.Load(f.t.Context(), f.Nomad.Client, "kvm", all)
	if err != nil {
		f.t.Fatal(err)
	}
	job.TaskGroups[0].Tasks[0].Config["probe"] = []map[string]any{{"enabled": false}}
	f.submit(job)
}

// placed are the nodes of a job's allocations that run or are being started.
func (f *fixture) placed(id string) []string {
	f.t.Helper()
	var nodes []string
	for _, alloc := range f.allocs(id) {
		if alloc.DesiredStatus == nomad.AllocDesiredStatusRun && !terminal(alloc) {
			nodes = append(nodes, alloc.NodeName)
		}
	}
	return nodes
}
