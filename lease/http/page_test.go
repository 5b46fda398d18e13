package http_test

import (
	"fmt"
	"net/http"
	"net/netip"
	"strconv"
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

// populated is a service of which every part of the page has something to show.
func populated(t *testing.T) *bench {
	t.Helper()
	var fleet []*lease.Proxy
	for i := range 9 {
		p := proxy(fmt.Sprintf("eg-fleet-%d", i))
		p.ExitIP = netip.AddrFrom4([4]byte{198, 51, 100, byte(i + 1)})
		p.Attributes = map[string]string{"provider": "hv", "zone": "hv-" + strconv.Itoa(1+i%3), "country": "DE"}
		fleet = append(fleet, p)
	}
	evil := proxy("eg-evil")
	evil.Attributes = map[string]string{"provider": "<b>bold</b>", "zone": "hv-2"}
	sick := proxy("eg-sick")
	sick.Healthy, sick.Reason = false, "auth: the proxy answered 407"
	sick.Attributes = map[string]string{"provider": "hv", "zone": "hv-2"}
	b := newBench(t, leasehttp.Config{}, append(fleet, evil, sick)...)
	b.service.SetPlaces(places())
	for i, ask := range []lease.Ask{
		{Target: "shop.example", Client: "crawler-1", TTL: time.Hour, Selector: "country=DE"},
		{Target: "news.example", Client: "crawler-2", TTL: time.Minute, Session: "cart-17"},
		{Target: "shop.example", Client: "crawler-1", TTL: time.Hour},
	} {
		r, err := b.service.Rules().NewRequest(ask)
		if err != nil {
			t.Fatal(err)
		}
		leases, err := b.service.Acquire(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			if _, err := b.service.Report(t.Context(), leases[0].ID, lease.Blocked, ""); err != nil {
				t.Fatal(err)
			}
		}
	}
	if _, err := b.service.Mark(t.Context(), "eg-fleet-7", lease.MarkInfo{Mark: lease.MarkFreeze, By: "ops", Reason: "invoice"}); err != nil {
		t.Fatal(err)
	}
	return b
}

const isLive = `document.getElementById("role")?.dataset.ok`

// The page in a real browser, as its script leaves it, in the light, in the dark
// and on a telephone.
func TestPageShowsTheFleet(t *testing.T) {
	b := populated(t)
	page := openPage(t, b.url+"/")
	page.look(1280, "light")
	page.until(isLive, "true")
	page.until(`document.querySelectorAll("#proxies tbody tr").length`, "11")
	text := page.eval("document.documentElement.outerHTML")
	for _, want := range []string{"live · leader", "eg-fleet-0", "hv-1", "&lt;b&gt;bold&lt;/b&gt;", "auth: the proxy answered 407",
		"shop.example", "crawler-1", "cart-17", "blocked by shop.example", "frozen by ops: invoice",
		"partly ready", "from n2 (1 of 2 nodes): Unreachable: see whether the target is up", "400 GiB of 1862 GiB", "local / n1"} {
		if !strings.Contains(text, want) {
			t.Errorf("the page has no %q", want)
		}
	}
	for _, wrong := range []string{"undefined", "native code", "NaN", "[object"} {
		if strings.Contains(page.eval("document.body.innerText"), wrong) {
			t.Errorf("the page shows %q", wrong)
		}
	}
	page.picture("")
	background := func() string { return page.eval(`getComputedStyle(document.body).backgroundColor`) }
	light := background()
	page.look(1280, "dark")
	page.until(`getComputedStyle(document.body).backgroundColor != "`+light+`"`, "true")
	page.picture("-dark")
	page.look(380, "light")
	page.until(`innerWidth`, "380")
	if wide := page.eval(`document.documentElement.scrollWidth <= innerWidth`); wide != "true" {
		t.Error("the page is wider than a telephone: " + page.eval(`document.documentElement.scrollWidth`))
	}
	page.picture("-narrow")

	// What happens is seen without a reload.
	b.service.SetPlaces(nil)
	page.until(`document.querySelector("#targets td").textContent`, "No target is registered in Consul yet.")
	for _, l := range b.leases() {
		b.call("DELETE", "/v1/leases/"+l.ID, nil)
	}
	page.until(`document.querySelector("#leases td").textContent`, "No leases are held.")
}

// Everything can be reached and used without a mouse, and one sees where one is.
func TestPageIsUsedWithTheKeyboard(t *testing.T) {
	page := openPage(t, populated(t).url+"/")
	page.look(1280, "light")
	page.until(isLive, "true")
	page.until(`document.querySelectorAll("#proxies tbody tr").length`, "11")
	const focus = `(document.activeElement.id || document.activeElement.className)`
	for _, want := range []string{"skip", "search", "r-fleet", "r-cooldowns", "r-targets", "r-proxies", "r-leases"} {
		page.key("Tab", 0)
		page.until(focus, want)
		if outline := page.eval(`getComputedStyle(document.activeElement).outlineStyle`); outline != "solid" {
			t.Errorf("the focus on %s is not seen: outline %s", want, outline)
		}
	}
	page.key("Tab", 8) // with Shift
	page.until(focus, "r-proxies")
	page.key("/", 0)
	page.until(focus, "search")
	page.typeText("407")
	page.until(`document.getElementById("proxies").tBodies[0].innerText.includes("eg-sick")`, "true")
	page.until(`document.querySelectorAll("#proxies tbody tr").length`, "1")
	page.until(`document.querySelector("#leases td").textContent`, "Nothing here matches “407”.")
	page.key("Enter", 0)
	page.until(focus, "r-proxies")
	page.key("/", 0)
	page.until(focus, "search")
	page.key("Escape", 0)
	page.until(`document.getElementById("search").value`, "")
	page.until(`document.querySelectorAll("#proxies tbody tr").length`, "11")
	page.until(focus, "search")
	page.key("Escape", 0)
	page.until(`document.activeElement == document.body`, "true")
	page.until(`document.getElementById("search").value`, "")
}
