package e2e_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/egress-proxies/egress/e2e/cluster"
	"github.com/egress-proxies/egress/e2e/origin"
)

// bench is one hypervisor that is reached over SSH, and a cluster that uses it as
// "hv". Its guests are on a bridge of the host: the guest agent alone knows
// their addresses.
type bench struct {
	*fixture
	host *libvirtHost
	// site is what the guests' proxies are probed against.
	site string
}

// benchNetwork begins the addresses of guests and of the site.
const benchNetwork = "10.77.9"

// newBench needs a network namespace of its own: see inside. images is HCL.
func newBench(t *testing.T, images string) *bench {
	t.Helper()
	under, err := os.MkdirTemp("", "egress-e2e-vm-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(under) })
	b := &bench{host: newLibvirtHost(t, under)}
	t.Cleanup(func() { _ = syscall.Unmount(filepath.Join(b.host.dir, "pools", "small"), syscall.MNT_DETACH) })
	b.host.pool("default")
	b.host.virsh("pool-start", "default")
	b.host.bridge("egbr9", benchNetwork)
	b.site = serve(t, benchNetwork+".1:0", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		client, _, _ := net.SplitHostPort(r.RemoteAddr)
		if r.URL.Path == "/ip" {
			fmt.Fprintln(w, client)
			return
		}
		_ = json.NewEncoder(w).Encode(origin.Page{Client: client, URL: r.URL.String()})
	}))
	config := cluster.Config{
		PluginBin: os.Getenv(insidePlugin),
		Probe: fmt.Sprintf("urls = [%q]\ninterval = \"1s\"\ntimeout = \"10s\"\nfailures = 5\nexit_ip_url = %q",
			b.site+"/", b.site+"/ip"),
		PluginConfig: fmt.Sprintf(`
credentials_file = %q
provider "hv" {
  type = "kvm"
  host "a" {
    address          = "ssh://root@%s"
    socket           = %q
    key_file         = %q
    known_hosts_file = %q
    network          = "bridge:egbr9"
  }
  %s
}`, credentialsFile(), b.host.SSH, b.host.Socket, b.host.Key, b.host.KnownHosts, images),
	}
	if err := config.Servers(); err != nil {
		t.Fatal(err)
	}
	c, err := cluster.Start(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	b.fixture = newFixture(t, c)
	t.Cleanup(func() { (&machines{fixture: b.fixture, a: b.host, b: b.host}).consoles() })
	return b
}

// within is until with another patience.
func (b *bench) within(patience time.Duration, what string, condition func(context.Context) error) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.t.Context(), patience)
	defer cancel()
	if err := cluster.Until(ctx, what, condition); err != nil {
		b.t.Fatal(err)
	}
}

// exec is `nomad alloc exec`, and how it ended.
func (b *bench) exec(alloc string, command ...string) string {
	b.t.Helper()
	return (&machines{fixture: b.fixture}).exec(alloc, command...)
}
