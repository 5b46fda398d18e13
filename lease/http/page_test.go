package http_test

import (
	"context"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/egress-proxies/egress/lease"
	leasehttp "github.com/egress-proxies/egress/lease/http"
)

func TestPageNeedsNothingFromOutside(t *testing.T) {
	b := newBench(t, leasehttp.Config{})
	for path, mediaType := range map[string]string{"/": "text/html", "/page.css": "text/css", "/page.js": "text/javascript"} {
		response, body := b.call("GET", path, nil)
		if response.StatusCode != http.StatusOK || !strings.HasPrefix(response.Header.Get("Content-Type"), mediaType) ||
			!strings.Contains(response.Header.Get("Content-Security-Policy"), "default-src 'none'") {
			t.Errorf("%s: %s %v", path, response.Status, response.Header)
		}
		if strings.Contains(body, "http://") || strings.Contains(body, "https://") || strings.Contains(body, "innerHTML") {
			t.Errorf("%s reaches outside, or writes HTML", path)
		}
	}
}

// The page in a real browser, as its script leaves it. EGRESS_SCREENSHOT names a
// file for a picture.
func TestPageShowsTheFleet(t *testing.T) {
	browser, err := exec.LookPath("chromium")
	if err != nil {
		t.Fatal("no chromium: make deps, or apt-get install chromium")
	}
	cooling := proxy("eg-cooling")
	cooling.Attributes = map[string]string{"provider": "kvm", "zone": "hv-1"}
	evil := proxy("eg-evil")
	evil.Attributes = map[string]string{"provider": "<b>bold</b>", "zone": "hv-2"}
	sick := proxy("eg-sick")
	sick.Healthy, sick.Reason = false, "auth: the proxy answered 407"
	b := newBench(t, leasehttp.Config{}, cooling, evil, sick)
	r, err := b.service.Rules().NewRequest(lease.Ask{Target: "shop.example", Client: "crawler-1", TTL: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	leases, err := b.service.Acquire(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.service.Report(t.Context(), leases[0].ID, lease.Blocked, ""); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	flags := []string{"--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
		"--user-data-dir=" + t.TempDir(), "--window-size=1280,900", "--virtual-time-budget=4000", "--force-dark-mode"}
	page, err := exec.CommandContext(ctx, browser, append(flags, "--dump-dom", b.url+"/")...).Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"live · leader", "eg-cooling", "hv-1", "&lt;b&gt;bold&lt;/b&gt;", "auth: the proxy answered 407",
		`data-state="unhealthy"`, "shop.example", "crawler-1", "blocked by shop.example"} {
		if !strings.Contains(string(page), want) {
			t.Errorf("the page has no %q", want)
		}
	}
	if t.Failed() {
		t.Logf("%s", page)
	}
	picture := os.Getenv("EGRESS_SCREENSHOT")
	if picture == "" {
		picture = filepath.Join(t.TempDir(), "page.png")
	}
	if out, err := exec.CommandContext(ctx, browser, append(flags, "--screenshot="+picture, b.url+"/")...).CombinedOutput(); err != nil {
		t.Errorf("screenshot: %v: %s", err, out)
	}
}
