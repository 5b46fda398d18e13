package e2e_test

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	consul "github.com/hashicorp/consul/api"

	bed "github.com/egress-proxies/egress/e2e/hypervisor"
	"github.com/egress-proxies/egress/lease/api"
)

// insideFull is the full guest's image, for a test that runs in namespaces.
const insideFull = "EGRESS_E2E_INSIDE_FULL"

// aBoot is how long a whole Debian may take from a job to a proxy that passes,
// under emulation and beside other work: three and a half minutes on a quiet
// machine, most of them for the packages.
const aBoot = 9 * time.Minute

// slow leaves a test to `make e2e-full`.
func slow(t *testing.T) {
	t.Helper()
	if os.Getenv("EGRESS_E2E_FULL") == "" {
		t.Skip("slow: runs with EGRESS_E2E_FULL=1 (make e2e-full)")
	}
}

// TestDebianIsAProxy is a machine as our users have them: a cloud image of
// Debian, whose real cloud-init installs squid and the real guest agent, asks
// clients for the task's credentials, and is looked into.
func TestDebianIsAProxy(t *testing.T) {
	d := newDebian(t)
	if d == nil {
		return
	}
	lease := d.leaseService(map[string]string{"args": fmt.Sprintf(`["--credentials-file", %q]`, credentialsFile())})
	d.launch("debian")
	d.asksForCredentials()
	d.isLeased(lease)
	d.console()
	d.commands()
	d.logIn()
	d.rebootKeepsTheTask()
	d.endsFromInside()
	d.leavesNothing()
}

// TestDebianUnderBIOS is the same image with the other firmware.
func TestDebianUnderBIOS(t *testing.T) {
	d := newDebian(t)
	if d == nil {
		return
	}
	d.launch("debian-bios")
	d.asksForCredentials()
	d.leavesNothing()
}

// newDebian is nil where the test has run elsewhere: see inside.
func newDebian(t *testing.T) *debian {
	t.Helper()
	slow(t)
	if os.Getenv(insideFull) == "" {
		image, err := bed.FullGuest(t.Context(), t.Output())
		if err != nil {
			t.Fatal(err)
		}
		t.Setenv(insideFull, image)
	}
	if !inside(t) {
		return nil
	}
	image := os.Getenv(insideFull)
	return &debian{bench: newBench(t, fmt.Sprintf(
		"image \"debian\" {\n url = %q\n}\nimage \"debian-bios\" {\n url = %q\n firmware = \"bios\"\n}", image, image))}
}

// debian is the one machine of the test.
type debian struct {
	*bench
	alloc string
	entry *consul.ServiceEntry
}

// squid is user-data that makes a proxy of Debian: what docs/kvm.md shows.
const squid = `#cloud-config
packages: [squid]
ssh_authorized_keys: [%q]
write_files:
  - path: /etc/squid/conf.d/egress.conf
    content: |
      visible_hostname egress
      auth_param basic program /usr/lib/squid/basic_ncsa_auth /etc/squid/users
      acl crawlers proxy_auth REQUIRED
      http_access allow crawlers
  - path: /etc/squid/users
    content: %q
runcmd:
  - systemctl restart squid
`

// launch runs the job, and waits until its proxy passes.
func (d *debian) launch(image string) {
	d.t.Helper()
	key, err := os.ReadFile(d.host.Key + ".pub")
	if err != nil {
		d.t.Fatal(err)
	}
	hash := strings.TrimSpace(d.host.must("openssl", "passwd", "-apr1", password))
	began := time.Now()
	d.load("kvm", d.name, map[string]string{
		"count": "1", "image": image, "memory": "768", "auth": "crawl", "kill_timeout": "30s", "restart_attempts": "0",
		"user_data": fmt.Sprintf(squid, strings.TrimSpace(string(key)), username+":"+hash+"\n"),
	})
	d.entry = d.passes(aBoot)
	d.t.Logf("%s: passes %.1f s after the job", image, time.Since(began).Seconds())
	d.alloc = d.running(d.name, 1)[0].ID
}

func (d *debian) asksForCredentials() {
	d.t.Helper()
	if got := d.entry.Service.Meta["auth"]; got != "crawl" {
		d.t.Errorf("meta auth = %q, want the name of the credentials", got)
	}
	if exit := d.entry.Service.Meta["exit_ip"]; exit != d.entry.Service.Address || !strings.HasPrefix(exit, benchNetwork) {
		d.t.Errorf("registered %s with exit %q; want the machine's own address", d.entry.Service.Address, exit)
	}
	if _, err := d.fetch(d.t.Context(), proxyURL(d.entry), d.site+"/"); err == nil {
		d.t.Error("squid served a client without credentials")
	}
}

func (d *debian) isLeased(lease *leases) {
	d.t.Helper()
	granted := lease.acquire(api.Acquire{Target: d.site, TTL: api.Duration(patience)})
	proxy, err := url.Parse(granted.URL)
	if err != nil {
		d.t.Fatal(err)
	}
	page, err := d.fetch(d.t.Context(), proxy, d.site+"/")
	if err != nil || page.Client != d.entry.Service.Address {
		d.t.Errorf("through %s: seen as %q, %v", proxy.Redacted(), page.Client, err)
	}
	lease.release(granted)
}

// console shows what a person looks for: cloud-init's report and the prompt.
func (d *debian) console() {
	d.t.Helper()
	for _, wanted := range []string{"Cloud-init v. ", "login:"} {
		d.until("the console is in the logs", func(ctx context.Context) error {
			text, err := d.logs(ctx, d.alloc)
			if err == nil && !strings.Contains(text, wanted) {
				err = fmt.Errorf("no %q in %s", wanted, text)
			}
			return err
		})
	}
}

// commands runs some through the agent, which the vendor-data has installed.
func (d *debian) commands() {
	d.t.Helper()
	for _, c := range []struct {
		command string
		wants   []string
	}{
		{"echo out; echo bad >&2; exit 7", []string{"out\n", "bad\n", "exit status 7"}},
		{"cloud-init status --wait", []string{"status: done"}},
		{"dpkg-query -W qemu-guest-agent squid; systemctl is-active qemu-guest-agent squid", []string{"squid\t5", "active\nactive\n"}},
	} {
		began := time.Now()
		out := d.exec(d.alloc, "sh", "-c", c.command)
		d.t.Logf("exec of %q takes %.1f s", c.command, time.Since(began).Seconds())
		for _, want := range c.wants {
			if !strings.Contains(out, want) {
				d.t.Errorf("exec of %q: %s; want %q", c.command, out, want)
			}
		}
	}
}

// logIn is by SSH, with the key that the user-data has brought.
func (d *debian) logIn() {
	d.t.Helper()
	began := time.Now()
	out := d.host.must("ssh", "-i", d.host.Key, "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null",
		"debian@"+d.entry.Service.Address, "sudo cat /var/lib/cloud/data/instance-id")
	if !strings.Contains(out, d.instance(d.alloc)) {
		d.t.Errorf("the instance's id in the guest is %q, want %s", out, d.instance(d.alloc))
	}
	d.t.Logf("ssh takes %.1f s", time.Since(began).Seconds())
}

func (d *debian) rebootKeepsTheTask() {
	d.t.Helper()
	const bootID = "/proc/sys/kernel/random/boot_id"
	prompts := func(ctx context.Context) (int, error) {
		text, err := d.logs(ctx, d.alloc)
		return strings.Count(text, "login:"), err
	}
	seen, err := prompts(d.t.Context())
	if err != nil {
		d.t.Fatal(err)
	}
	before, began := d.exec(d.alloc, "cat", bootID), time.Now()
	d.exec(d.alloc, "systemctl", "reboot")
	d.within(aBoot, "the guest has booted again", func(ctx context.Context) error {
		n, err := prompts(ctx)
		if err != nil || n <= seen {
			return errNotYet(n, err)
		}
		out := d.exec(d.alloc, "cat", bootID) // Its agent may not be up yet.
		if strings.Count(out, "-") != 4 || out == before {
			return fmt.Errorf("boot id %s, before %s", out, before)
		}
		return nil
	})
	d.passes(aBoot)
	d.t.Logf("passes %.1f s after a reboot", time.Since(began).Seconds())
	if after := d.running(d.name, 1)[0]; after.ID != d.alloc || after.TaskStates["proxy"].Restarts != 0 {
		d.t.Errorf("after a reboot: allocation %s with %d restarts, want %s with none", after.ID, after.TaskStates["proxy"].Restarts, d.alloc)
	}
}

func (d *debian) endsFromInside() {
	d.t.Helper()
	began := time.Now()
	d.exec(d.alloc, "systemctl", "poweroff")
	d.event(d.name, "Terminated", "Exit Code: 0", "the guest was shut down")
	d.t.Logf("a shutdown from inside ends the task after %.1f s", time.Since(began).Seconds())
}

func (d *debian) leavesNothing() {
	d.t.Helper()
	d.stop(d.name)
	if left, volumes := d.host.domains(), d.host.volumes(); len(left) != 0 || len(volumes) != 0 {
		d.t.Errorf("left behind: machines %q, volumes %q", left, volumes)
	}
}

// passes waits, for as long as a machine may take, until the one proxy passes.
func (b *bench) passes(patience time.Duration) *consul.ServiceEntry {
	b.t.Helper()
	var entry *consul.ServiceEntry
	b.within(patience, "the machine passes", func(ctx context.Context) error {
		entries, err := b.Consul.Passing(ctx, b.name)
		if err != nil || len(entries) != 1 {
			return errNotYet(len(entries), err)
		}
		entry = entries[0]
		return nil
	})
	return entry
}
