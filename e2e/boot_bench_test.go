package e2e_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// figuresFile is where a measuring test leaves its figures for the benchmark
// that runs it.
const figuresFile = "EGRESS_E2E_FIGURES"

// measured runs a measuring test in a process of its own, as it needs tests'
// fixtures, and reports its figures, each under its unit.
func measured(b *testing.B, test string) {
	b.Helper()
	self, err := os.Executable()
	if err != nil {
		b.Fatal(err)
	}
	file := filepath.Join(b.TempDir(), "figures.json")
	for b.Loop() {
		cmd := exec.CommandContext(b.Context(), self, "-test.run", "^"+test+"$", "-test.v", "-test.timeout", "20m")
		cmd.Env = append(os.Environ(), figuresFile+"="+file)
		if out, err := cmd.CombinedOutput(); err != nil {
			b.Fatalf("%s: %v\n%s", test, err, out)
		}
	}
	text, err := os.ReadFile(file)
	figures := map[string]float64{}
	if err == nil {
		err = json.Unmarshal(text, &figures)
	}
	if err != nil {
		b.Fatal(err)
	}
	b.ReportMetric(0, "ns/op") // Of the whole test, which means nothing.
	for unit, value := range figures {
		b.ReportMetric(value, unit)
	}
}

// measuring leaves a test to `make bench` and `make e2e-full`, and says how
// often it shall measure.
func measuring(t *testing.T) (rounds int) {
	t.Helper()
	if os.Getenv(figuresFile) != "" {
		return 3
	}
	slow(t)
	return 1
}

// tell is for the log, and for the benchmark.
func tell(t *testing.T, figures map[string]float64) {
	t.Helper()
	text, err := json.Marshal(figures)
	if err == nil && os.Getenv(figuresFile) != "" {
		err = os.WriteFile(os.Getenv(figuresFile), text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%s", text)
}

// median of some times, in seconds.
func median(times []time.Duration) float64 {
	times = slices.Sorted(slices.Values(times))
	return times[len(times)/2].Seconds()
}

// BenchmarkBoot is what a machine costs above its guest's own boot.
func BenchmarkBoot(b *testing.B) { measured(b, "TestBootByJobAgainstByHand") }

// TestBootByJobAgainstByHand boots one and the same guest by turns by `nomad job
// run`, until Consul says that its proxy passes, and by virsh, until a page
// comes through the proxy.
func TestBootByJobAgainstByHand(t *testing.T) {
	rounds := measuring(t)
	if !inside(t) {
		return
	}
	b := newBench(t, fmt.Sprintf("image \"micro\" {\n url = %q\n firmware = \"bios\"\n}", os.Getenv(insideGuest)))
	byJob := func() time.Duration {
		began := time.Now()
		b.load("kvm", b.name, map[string]string{"count": "1", "image": "micro", "memory": "256", "kill_timeout": "20s"})
		b.passes(patience)
		return time.Since(began)
	}
	stop := func() {
		b.stop(b.name)
		b.ended[b.name] = false // It is run again.
	}
	byJob() // With the upload of the image.
	twin := b.twin(b.host.domains()[0])
	stop()
	var job, hand []time.Duration
	for range rounds {
		hand = append(hand, twin.boot())
		job = append(job, byJob())
		stop()
	}
	figures := map[string]float64{
		"job-s": median(job), "hand-s": median(hand),
		"over-s": median(job) - median(hand), "job/hand": median(job) / median(hand),
	}
	tell(t, figures)
	// Far off what it should be, for a machine that does something else, too.
	if figures["job/hand"] > 3 {
		t.Errorf("a machine takes %v, and %v by hand", job, hand)
	}
}

// twin is a machine that is made and booted by hand, just as the provider's.
type twin struct {
	b                   *bench
	document, base, mac string
	disk, seed, name    string
}

// twin reads what the provider has made of a machine that runs.
func (b *bench) twin(domain string) *twin {
	b.t.Helper()
	document := b.host.must("virsh", "-c", "qemu:///system?socket="+b.host.Socket, "dumpxml", "--inactive", domain)
	pool := filepath.Join(b.host.dir, "pools", "default")
	found := func(pattern string) string {
		b.t.Helper()
		match := regexp.MustCompile(pattern).FindStringSubmatch(document)
		if match == nil {
			b.t.Fatalf("no %s in %s", pattern, document)
		}
		return match[1]
	}
	w := &twin{
		b: b, name: "by-hand", disk: filepath.Join(pool, "by-hand.qcow2"), seed: filepath.Join(pool, "by-hand.iso"),
		mac: found(`<mac address='([^']*)'`),
	}
	disk, seed := found(`source file='([^']*\.qcow2)'`), found(`source file='([^']*\.iso)'`)
	b.host.must("cp", seed, w.seed)
	var info struct {
		Base string `json:"full-backing-filename"`
	}
	if err := json.Unmarshal([]byte(b.host.must("qemu-img", "info", "--force-share", "--output=json", disk)), &info); err != nil {
		b.t.Fatal(err)
	}
	w.base = info.Base
	w.document = strings.NewReplacer(disk, w.disk, seed, w.seed, ">"+domain+"<", ">"+w.name+"<",
		strings.TrimSuffix(disk, ".qcow2")+".log", filepath.Join(pool, "by-hand.log")).Replace(document)
	w.document = regexp.MustCompile(`(?s)<uuid>.*?</uuid>|<metadata>.*</metadata>`).ReplaceAllString(w.document, "")
	return w
}

// boot is how long it takes from the definition to the first page.
func (w *twin) boot() time.Duration {
	w.b.t.Helper()
	w.b.host.must("qemu-img", "create", "-q", "-f", "qcow2", "-F", "qcow2", "-b", w.base, w.disk)
	w.b.host.write("by-hand.xml", w.document)
	leases := filepath.Join(w.b.host.dir, "leases")
	before := w.leased(leases)
	began := time.Now()
	w.b.host.virsh("define", filepath.Join(w.b.host.dir, "by-hand.xml"))
	w.b.host.virsh("start", w.name)
	w.b.within(patience, "a page comes through the machine", func(ctx context.Context) error {
		lease := w.leased(leases)
		if lease == "" || lease == before {
			return fmt.Errorf("lease %q, before %q", lease, before)
		}
		proxy := &url.URL{Scheme: "http", Host: net.JoinHostPort(strings.Fields(lease)[2], "3128")}
		_, err := w.b.fetch(ctx, proxy, w.b.site+"/")
		return err
	})
	took := time.Since(began)
	w.b.host.virsh("destroy", w.name)
	w.b.host.virsh("undefine", w.name)
	for _, file := range []string{w.disk, filepath.Join(filepath.Dir(w.disk), "by-hand.log")} {
		if err := os.Remove(file); err != nil {
			w.b.t.Error(err)
		}
	}
	return took
}

// leased is the line of dnsmasq's about the machine: its end, card and address.
func (w *twin) leased(file string) string {
	text, _ := os.ReadFile(file) // There is none before the first.
	for line := range strings.Lines(string(text)) {
		if fields := strings.Fields(line); len(fields) > 2 && strings.EqualFold(fields[1], w.mac) {
			return strings.TrimSpace(line)
		}
	}
	return ""
}
