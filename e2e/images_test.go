package e2e_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	nomad "github.com/hashicorp/nomad/api"

	"github.com/egress-proxies/egress/e2e/cluster"
)

// imageSite publishes two images: proven, whose digest is configured, and plain,
// which has an ETag and new content with each version.
type imageSite struct {
	url     string
	sha256  string
	asked   atomic.Int32
	version atomic.Int32
}

func newImageSite(t *testing.T) *imageSite {
	t.Helper()
	s := &imageSite{}
	disk := bootlessDisk(t)
	sum := sha256.Sum256(disk)
	s.sha256 = hex.EncodeToString(sum[:])
	s.url = serve(t, "127.0.0.1:0", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		content := disk
		if r.URL.Path == "/plain" {
			version := strconv.Itoa(int(s.version.Load()))
			content = append(bytes.Clone(disk), version...)
			w.Header().Set("ETag", strconv.Quote(version))
		} else {
			s.asked.Add(1)
		}
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(content))
	}))
	return s
}

// imageBed is a hypervisor that has whatever KVM this machine has, seen as three
// hosts: one as it is, one of which KVM is demanded, and one over the read-only
// socket. Another one has no UEFI firmware.
type imageBed struct {
	*fixture
	host *libvirtHost
	site *imageSite
}

func newImageBed(t *testing.T) *imageBed {
	t.Helper()
	t.Parallel()
	b := &imageBed{site: newImageSite(t), host: bootless(t, "hv-images", 4<<10, "HOST_KVM=yes")}
	b.host.pool("strict")
	b.host.virsh("pool-start", "strict")
	bare := bootless(t, "hv-bare", 1<<10, "HOST_HIDE=/usr/share/qemu/firmware")
	c, err := startCluster(cluster.Config{PluginConfig: fmt.Sprintf(`
fingerprint {
  interval = "500ms"
  timeout  = "5s"
}
provider "hv" {
  type = "kvm"
  host "own" {
    address = "unix://%[1]s"
  }
  host "strict" {
    address   = "unix://%[1]s"
    pool      = "strict"
    virt_type = "kvm"
  }
  host "read-only" {
    address = "unix://%[1]s-ro"
  }
  image "proven" {
    url      = "%[2]s/proven"
    sha256   = %[3]q
    firmware = "bios"
  }
  image "plain" {
    url      = "%[2]s/plain"
    firmware = "bios"
  }
  machine_type "small" {
    cores      = 1
    memory_mib = 64
  }
  default_image        = "proven"
  default_machine_type = "small"
}
provider "uefi" {
  type = "kvm"
  host "bare" {
    address = "unix://%[4]s"
  }
  image "modern" {
    url = "%[2]s/proven"
  }
}`, b.host.Socket, b.site.url, b.site.sha256, bare.Socket)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	b.fixture = newFixture(t, c)
	return b
}

// storedImage is what `egress images list --json` says of one.
type storedImage struct {
	Target, State, Digest string
	Images                []string
	UsedBy                []string `json:"used_by"`
}

// images are what a host has, by the state and the name of the entry.
func (b *imageBed) images(ctx context.Context, target string) (map[string][]storedImage, error) {
	var out, problems bytes.Buffer
	cmd := b.command(ctx, "images", "list", "--config", filepath.Join(b.Dir, "nomad.hcl"), "--target", target, "--json")
	cmd.Stdout, cmd.Stderr = &out, &problems
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("egress images list: %w\n%s", err, problems.String())
	}
	var all []storedImage
	if err := json.Unmarshal(out.Bytes(), &all); err != nil {
		return nil, fmt.Errorf("%w in\n%s", err, out.String())
	}
	found := map[string][]storedImage{}
	for _, i := range all {
		key := i.State + " " + strings.Join(i.Images, ",")
		found[key] = append(found[key], i)
	}
	return found, nil
}

// has waits until a host has images in the states.
func (b *imageBed) has(target string, want ...string) map[string][]storedImage {
	b.t.Helper()
	var found map[string][]storedImage
	b.until(fmt.Sprintf("%s has %q", target, want), func(ctx context.Context) (err error) {
		if found, err = b.images(ctx, target); err != nil {
			return err
		}
		for _, key := range want {
			if len(found[key]) == 0 {
				return fmt.Errorf("it has %v", found)
			}
		}
		return nil
	})
	return found
}

// TestImagesAreWarmedListedAndPruned on a real hypervisor, by hand and by the job.
func TestImagesAreWarmedListedAndPruned(t *testing.T) {
	b := newImageBed(t)
	config := filepath.Join(b.Dir, "nomad.hcl")
	t.Run("what the host lacks has its reason", b.lacks)
	b.has("own", "missing proven", "missing plain")
	b.warmJob(config)
	b.has("own", "ready proven", "ready plain")
	b.has("strict", "missing proven", "missing plain") // the job does not name it
	t.Run("a start fetches nothing", b.startFetchesNothing)

	b.site.version.Add(1) // The job finds out by itself.
	b.until("the old version is of no entry any more", func(ctx context.Context) error {
		found, err := b.images(ctx, "own")
		if err == nil && (len(found["ready "]) != 1 || len(found["ready plain"]) != 1) {
			err = fmt.Errorf("it has %v", found)
		}
		return err
	})
	out, code := b.egress("images", "prune", "--config", config, "--target", "own", "--older-than", "0s", "--all")
	if code != 0 {
		t.Errorf("prune: exit code %d", code)
	}
	says(t, out, "removed", "in use by egress_", "freed.")
	b.has("own", "ready proven", "ready plain") // one is in use, one is brought back by the job
	if n := len(b.host.domains()); n != 1 {
		t.Errorf("%d machines, want the one of the fleet", n)
	}
	t.Run("KVM that may not work", b.virtType)
	b.stop(b.name)
	b.stop(b.name + "-warm")
	out, code = b.egress("images", "prune", "--config", config, "--target", "own", "--older-than", "0s")
	if code != 0 {
		t.Errorf("prune of what nothing uses: exit code %d\n%s", code, out)
	}
	if found := b.has("own", "missing proven", "missing plain"); len(found["ready "]) != 0 {
		t.Errorf("left %v", found)
	}
	out, code = b.egress("images", "list", "--config", config)
	if code != 1 {
		t.Errorf("list of all: exit code %d, want 1", code)
	}
	says(t, out, "not looked at: hv/read-only/default: ", "1 of 4 hypervisors could not be looked at", "missing")
}

// warmJob runs the jobspec, which looks again every other second.
func (b *imageBed) warmJob(config string) {
	b.t.Helper()
	id := b.name + "-warm"
	b.ended[id] = false
	b.t.Cleanup(func() { b.explain(); b.stop(id) })
	out, code := b.egress("job", "run", "warm", "--var", "name="+id, "--var", `targets=["own"]`, "--var", "every=2s", "--var", "splay=0s",
		"--var", "binary="+b.Plugin, "--var", "config="+config)
	if code != 0 {
		b.t.Fatalf("job run warm: exit code %d\n%s", code, out)
	}
}

// lacks: reasons that no other test makes for real.
func (b *imageBed) lacks(t *testing.T) {
	b.attributes(b.Nomad.Node, map[string]string{
		"hv.own.reason": "Reachable", "hv.read-only.reason": "Forbidden", "uefi.bare.reason": "FirmwareMissing", "uefi.ready": "false",
	})
	out, code := b.egress("check", filepath.Join(b.Dir, "nomad.hcl"))
	if code != 1 {
		t.Errorf("check: exit code %d, want 1", code)
	}
	says(t, out, "hv/read-only: Forbidden: ", "read only access", "group libvirt", "uefi/bare: FirmwareMissing: ", "install the package ovmf")
}

// startFetchesNothing: what the job has brought there is what a start uses.
func (b *imageBed) startFetchesNothing(t *testing.T) {
	before := b.site.asked.Load()
	b.machines(b.name, map[string]string{"count": "1", "zone": "own"})
	alloc := b.running(b.name, 1)[0]
	if now := b.site.asked.Load(); now != before {
		t.Errorf("the image was asked for %d times", now-before)
	}
	for _, event := range alloc.TaskStates["proxy"].Events {
		if strings.Contains(event.DisplayMessage, "fetching") {
			t.Errorf("event: %s", event.DisplayMessage)
		}
	}
	used := b.has("own", "ready proven")["ready proven"]
	if len(used) != 1 || len(used[0].UsedBy) != 1 || !strings.Contains(used[0].UsedBy[0], b.instance(alloc.ID)) {
		t.Errorf("the image's users are %+v, want the machine's disk", used)
	}
}

// virtType: on a machine whose /dev/kvm works, machines run under KVM; where it is
// there and fails they are emulated, unless KVM is demanded.
func (b *imageBed) virtType(t *testing.T) {
	document := b.host.must("virsh", "-q", "-c", "qemu:///system?socket="+b.host.Socket, "dumpxml", b.host.domains()[0])
	virtType := "qemu"
	if strings.Contains(document, "<domain type='kvm'") {
		virtType = "kvm"
	}
	_, err := os.Stat("/dev/kvm")
	t.Logf("/dev/kvm: %v; machines are of type %s", err, virtType)
	b.attributes(b.Nomad.Node, map[string]string{"hv.own.virt_type": virtType, "hv.own.ready": "true"})
	if virtType == "qemu" && err == nil {
		b.event(b.name, "KVM does not work on own", "the machine is emulated")
	}
	id := b.name + "-strict"
	b.machines(id, map[string]string{"count": "1", "zone": "strict", "restart_attempts": "0"})
	if virtType == "kvm" {
		b.running(id, 1)
		b.attributes(b.Nomad.Node, map[string]string{"hv.strict.ready": "true", "hv.strict.virt_type": "kvm"})
	} else {
		b.event(id, "host strict: ", "virt_type")
		b.attributes(b.Nomad.Node, map[string]string{"hv.strict.ready": "false", "hv.strict.reason": "VirtualizationUnavailable"})
		out, _ := b.egress("check", filepath.Join(b.Dir, "nomad.hcl"), "--provider", "hv")
		says(t, out, "hv/strict: VirtualizationUnavailable: ")
		b.until("the machine that demands KVM has failed", func(context.Context) error {
			allocs := b.allocs(id)
			if !slices.ContainsFunc(allocs, func(a *nomad.AllocationListStub) bool { return a.ClientStatus == nomad.AllocClientStatusFailed }) {
				return fmt.Errorf("%d allocations, none of them failed", len(allocs))
			}
			return nil
		})
	}
	b.stop(id)
}
