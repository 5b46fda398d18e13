package e2e_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/egress-proxies/egress/e2e/cluster"
	"github.com/egress-proxies/egress/e2e/guard"
	"github.com/egress-proxies/egress/provider/kvm/domain"
)

// cuts is a bootless hypervisor that is reached through SSH and a relay, the
// images of its machines, which can be held back, and a cluster. Its provider
// "hv" has the host "far" on it, and "tight", which is the same with a pool of
// its own.
type cuts struct {
	*fixture
	host   *libvirtHost
	relay  *relay
	images map[string]*slowImage // by name
}

// slowImage is an image in whose middle the server can stop.
type slowImage struct {
	content []byte

	mu   sync.Mutex // guards hold
	hold chan struct{}
}

func (i *slowImage) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	i.mu.Lock()
	hold := i.hold
	i.mu.Unlock()
	if hold != nil {
		w.Header().Set("Content-Length", fmt.Sprint(len(i.content)))
		_, _ = w.Write(i.content[:len(i.content)/2])
		_ = http.NewResponseController(w).Flush()
		select {
		case <-hold:
			_, _ = w.Write(i.content[len(i.content)/2:])
		case <-r.Context().Done():
		}
		return
	}
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(i.content))
}

// stop makes the server stop in the middle, for requests from now on too, until
// release is called.
func (i *slowImage) stop() (release func()) {
	hold := make(chan struct{})
	i.mu.Lock()
	defer i.mu.Unlock()
	i.hold = hold
	return sync.OnceFunc(func() {
		i.mu.Lock()
		defer i.mu.Unlock()
		i.hold = nil
		close(hold)
	})
}

func newCuts(t *testing.T, images ...string) *cuts {
	t.Helper()
	t.Parallel()
	c := &cuts{host: bootless(t, "hv", 40<<10), images: map[string]*slowImage{}}
	c.host.pool("tight")
	c.host.virsh("pool-start", "tight")
	c.relay = newRelay(c.host)
	var blocks strings.Builder
	mux := http.NewServeMux()
	web := serve(t, "127.0.0.1:0", mux)
	for n, name := range append(images, "nothing") {
		image := &slowImage{content: bootlessDisk(t)}
		if name != "nothing" {
			image.content = append(image.content, noise(8<<20, n)...)
		}
		sum := sha256.Sum256(image.content)
		c.images[name] = image
		mux.Handle("/"+name, image)
		fmt.Fprintf(&blocks, "image %q {\n url = %q\n sha256 = %q\n firmware = \"bios\"\n}\n", name, web+"/"+name, hex.EncodeToString(sum[:]))
	}
	hosts := ""
	for name, pool := range map[string]string{"far": "default", "tight": "tight"} {
		hosts += fmt.Sprintf("host %q {\n address = \"ssh://root@%s\"\n socket = %q\n key_file = %q\n known_hosts_file = %q\n pool = %q\n}\n",
			name, c.host.SSH, c.relay.Socket, c.host.Key, c.host.KnownHosts, pool)
	}
	running, err := startCluster(cluster.Config{PluginConfig: fmt.Sprintf(`
provider "hv" {
  type = "kvm"
  %s
  %s
  machine_type "small" {
    cores      = 1
    memory_mib = 64
  }
  machine_type "huge" {
    cores      = 1
    memory_mib = 4194304
  }
  default_image        = "nothing"
  default_machine_type = "small"
}`, hosts, blocks.String())})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := running.Close(); err != nil {
			t.Error(err)
		}
	})
	c.fixture = newFixture(t, running)
	c.attributes(c.Nomad.Node, map[string]string{"hv.far.ready": "true"})
	return c
}

// noise is data that is different for each seed and can't be sent as holes.
func noise(size, seed int) []byte {
	random := rand.New(rand.NewPCG(1, uint64(seed)))
	data := make([]byte, 0, size)
	for len(data) < size {
		data = binary.LittleEndian.AppendUint64(data, random.Uint64()|0x0101010101010101)
	}
	return data
}

// stopped is a start that is stopped in the middle.
type stopped struct {
	step, job, alloc string
	release          func()
}

// userData is in the seed of each machine.
const userData = "#cloud-config\n# seen in the seed\n"

// begin starts a job, which stops where step says, and waits until it has.
// image is one that no host has yet.
func (c *cuts) begin(step, image string, variables map[string]string) stopped {
	c.t.Helper()
	s := stopped{step: step, job: c.name + "-" + image + "-" + notName.ReplaceAllString(step, "-")}
	with := map[string]string{"zone": "far", "count": "1", "user_data": userData}
	var g *gate
	switch step {
	case "image":
		with["image"] = image
		s.release = c.images[image].stop()
	case "disk":
		g = c.relay.stopAfter("<volume", ".qcow2</name>")
	case "seed":
		g = c.relay.stopBefore("seen in the seed")
	case "definition":
		g = c.relay.stopAfter("<domain", "</domain>")
	case "address":
		c.host.silent.Store(true)
		s.release = func() { c.host.silent.Store(false) }
	}
	if g != nil {
		s.release = sync.OnceFunc(func() { close(g.open) })
	}
	for key, value := range variables {
		with[key] = value
	}
	c.t.Cleanup(s.release)
	c.machines(s.job, with)
	c.until("the start of "+s.job+" is at its step", func(context.Context) error {
		allocs := c.allocs(s.job)
		if len(allocs) != 1 {
			return fmt.Errorf("%d allocations", len(allocs))
		}
		s.alloc = allocs[0].ID
		switch step {
		case "image":
			return c.partial()
		case "address":
			_, err := os.Stat(filepath.Join(c.host.dir, "state/run/libvirt/qemu", c.instance(s.alloc)+".xml"))
			return err
		}
		select {
		case <-g.arrived:
			return nil
		default:
			return errors.New("the call did not come")
		}
	})
	return s
}

// bases are the files of images, and those that no marker stands for.
func (c *cuts) bases() (complete, partial []string) {
	files, _ := filepath.Glob(filepath.Join(c.host.dir, "pools", "*", "egress-base-*"))
	for _, file := range files {
		if strings.HasSuffix(file, ".ready") {
			continue
		}
		if markers, _ := filepath.Glob(file + ".*.ready"); len(markers) == 1 {
			complete = append(complete, file)
		} else {
			partial = append(partial, file)
		}
	}
	return complete, partial
}

// partial fails until an image is on its way and a part of it has arrived.
func (c *cuts) partial() error {
	_, partial := c.bases()
	if len(partial) != 1 {
		return fmt.Errorf("partial images: %q", partial)
	}
	info, err := os.Stat(partial[0])
	if err == nil && info.Size() < 1<<20 {
		err = fmt.Errorf("%d bytes have arrived", info.Size())
	}
	return err
}

// hasImage fails unless the pool has the image whole, and nothing of any other
// attempt.
func (c *cuts) hasImage(name string) {
	c.t.Helper()
	complete, partial := c.bases()
	whole := slices.ContainsFunc(complete, func(file string) bool {
		content, err := os.ReadFile(file)
		return err == nil && bytes.Equal(content, c.images[name].content)
	})
	if !whole || len(partial) != 0 {
		c.t.Errorf("the pool has the images %q, of which one is %s: %v; and the parts %q", complete, name, whole, partial)
	}
}

// justThese waits until the starts have ended well, with one machine each.
func (c *cuts) justThese(starts []stopped) {
	c.t.Helper()
	var machines, volumes []string
	for _, s := range starts {
		if got := c.running(s.job, 1)[0].ID; got != s.alloc {
			c.t.Errorf("%s: allocation %s runs, want %s", s.step, got, s.alloc)
		}
		name := c.instance(s.alloc)
		machines = append(machines, name)
		for _, kind := range domain.Kinds {
			volumes = append(volumes, domain.VolumeName(c.Name, name, kind))
		}
		seed, err := os.ReadFile(filepath.Join(c.host.dir, "pools/default", domain.VolumeName(c.Name, name, domain.Seed)))
		if err != nil || !bytes.Contains(seed, []byte(userData)) || !bytes.Contains(seed, []byte(name)) {
			c.t.Errorf("%s: the seed (%d bytes, %v) lacks the user-data or the name", s.step, len(seed), err)
		}
	}
	c.until("there is one machine for each", func(context.Context) error { return c.host.holds(machines, volumes) })
}

// holds fails unless the host has just these machines and volumes.
func (h *libvirtHost) holds(machines, volumes []string) error {
	gotMachines, gotVolumes := h.domains(), h.volumes()
	for _, list := range [][]string{machines, volumes, gotMachines, gotVolumes} {
		slices.Sort(list)
	}
	if !slices.Equal(machines, gotMachines) || !slices.Equal(volumes, gotVolumes) {
		return fmt.Errorf("machines %q, volumes %q; want %q, %q", gotMachines, gotVolumes, machines, volumes)
	}
	return nil
}

// TestStartsOfMachinesThatAreCut in the middle of each of their steps, on a real
// libvirtd over a real SSH server: one machine in the end when they go on, and
// none when they don't. All steps at once: each act costs its time only once.
func TestStartsOfMachinesThatAreCut(t *testing.T) {
	c := newCuts(t, "plugin", "agent", "job", "link", "full")
	steps := []string{"image", "disk", "seed", "definition", "address"} // address is last: nobody gets one from then on
	for _, act := range []struct {
		name string
		do   func([]stopped)
	}{
		{"plugin", func([]stopped) { c.killPlugin() }},
		{"agent", func([]stopped) { c.restartNomad(c.Nomad.Kill) }},
		{"job", c.stopAll},
	} {
		began := time.Now()
		variables := map[string]string{}
		if act.name == "job" {
			variables["start_timeout"] = "10s" // for the one that is never let go on
		}
		var starts []stopped
		for _, step := range steps {
			starts = append(starts, c.begin(step, act.name, variables))
		}
		reached := time.Since(began)
		act.do(starts)
		if act.name != "job" {
			for _, s := range starts {
				s.release()
			}
			c.justThese(starts)
			c.hasImage(act.name)
		}
		ended := time.Since(began)
		c.deregister(starts) // All at once: each takes its kill_timeout.
		for _, s := range starts {
			c.stop(s.job)
			s.release()
		}
		if act.name != "job" {
			c.event(starts[0].job, "did not end within kill_timeout 1s and was deleted") // case 9: nothing in it listens
		}
		c.until("nothing is left", func(context.Context) error { return c.host.holds(nil, nil) })
		t.Logf("%s: at the steps after %.1f s, as it should be after %.1f s, gone after %.1f s",
			act.name, reached.Seconds(), ended.Seconds(), time.Since(began).Seconds())
		if t.Failed() {
			return
		}
	}
	c.linkIsCut()
	c.runsFull()
}

// stopAll is case 3. Nomad lets a start end before it stops a task; the one that
// waits for an address ends with its time.
func (c *cuts) stopAll(starts []stopped) {
	c.t.Helper()
	c.deregister(starts)
	for _, s := range starts {
		if s.step != "address" {
			s.release()
		}
	}
}

func (c *cuts) deregister(starts []stopped) {
	c.t.Helper()
	for _, s := range starts {
		if _, _, err := c.Nomad.Client.Jobs().Deregister(s.job, false, nil); err != nil {
			c.t.Fatal(err)
		}
	}
}

// sessions are the processes that serve an SSH connection each.
func (h *libvirtHost) sessions() (sessions []guard.Process) {
	h.t.Helper()
	processes, err := guard.Processes(h.dir)
	if err != nil {
		h.t.Fatal(err)
	}
	for _, p := range processes {
		if strings.HasPrefix(strings.Join(p.Args, " "), "sshd: root") {
			sessions = append(sessions, p)
		}
	}
	return sessions
}

// linkIsCut cuts the SSH connection in the middle of an upload: the start goes on
// by itself, and no part of the first attempt is used.
func (c *cuts) linkIsCut() {
	c.t.Helper()
	began := time.Now()
	s := c.begin("image", "link", nil)
	_, before := c.bases()
	sessions := c.host.sessions()
	if len(sessions) == 0 {
		c.t.Fatal("no SSH session is seen")
	}
	for _, p := range sessions {
		if err := p.Signal(syscall.SIGKILL); err != nil {
			c.t.Fatal(err)
		}
	}
	c.until("the part is removed", func(context.Context) error {
		if _, err := os.Stat(before[0]); err == nil {
			return fmt.Errorf("%s is there", before[0])
		}
		return nil
	})
	removed := time.Since(began)
	s.release()
	c.justThese([]stopped{s})
	c.hasImage("link")
	running := time.Since(began)
	if n := c.running(s.job, 1)[0].TaskStates["proxy"].Restarts; n != 0 {
		c.t.Errorf("the task was restarted %d times: the start did not go on by itself", n)
	}
	c.stop(s.job)
	c.t.Logf("a cut link: the part is gone after %.1f s, the task runs after %.1f s, gone after %.1f s",
		removed.Seconds(), running.Seconds(), time.Since(began).Seconds())
}
