package command_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/egress-proxies/egress/provider"
	"github.com/egress-proxies/egress/provider/fake"
	"github.com/egress-proxies/egress/provider/kvm/image"
)

// disk is a raw image.
func disk() []byte {
	content := bytes.Repeat([]byte{0, 1, 0xFE, 0xFF}, 64<<10)
	content[510], content[511] = 0x55, 0xAA
	return content
}

// published is a provider with two empty hosts and an image on a server, which
// counts how often it was asked.
func published(t *testing.T, handler func(w http.ResponseWriter, content []byte)) (*keeper, map[string]provider.Provider, *atomic.Int32) {
	t.Helper()
	var asked atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked.Add(1)
		handler(w, disk())
	}))
	t.Cleanup(server.Close)
	sum := sha256.Sum256(disk())
	k := &keeper{
		Provider: fake.New(fake.Options{}), pools: []*pool{newPool("a/default"), newPool("b/default")},
		catalog: image.Catalog{Entries: map[string]image.Entry{
			"proven": {URL: server.URL + "/i", SHA256: hex.EncodeToString(sum[:])}, "plain": {URL: server.URL + "/i"},
		}},
	}
	return k, map[string]provider.Provider{"hv": k}, &asked
}

func whole(w http.ResponseWriter, content []byte) { _, _ = w.Write(content) }

func TestWarmFetchesOnceForAllAndThenNeverAgain(t *testing.T) {
	k, providers, asked := published(t, whole)
	out, problems, code := run(t.Context(), providers, "warm", "proven")
	if code != 0 {
		t.Fatalf("code %d\n%s%s", code, out, problems)
	}
	for _, host := range []string{"a", "b"} {
		line(t, out, "hv/"+host+"/default: fetching image proven")
		line(t, out, "hv/"+host+"/default: image proven was fetched in")
	}
	for _, p := range k.pools {
		if names := p.names(); len(names) != 2 {
			t.Errorf("%s has %q, want the image and its marker", p, names)
		}
	}
	if n := asked.Load(); n != 1 {
		t.Errorf("the server was asked %d times, want one download for both", n)
	}
	out, _, code = run(t.Context(), providers, "warm", "proven", "--json", "--target", "b")
	var got struct{ Target, Image, Result, Digest string }
	if err := json.Unmarshal([]byte(out), &got); err != nil || code != 0 || got.Result != "present" || got.Target != "b/default" || got.Digest == "" {
		t.Errorf("again: code %d, %+v, %v", code, got, err)
	}
	if n := asked.Load(); n != 1 {
		t.Errorf("what is there was asked for: %d requests", n)
	}
}

func TestWarmTellsOfAServerThatProvesNothing(t *testing.T) {
	_, providers, _ := published(t, whole)
	out, _, code := run(t.Context(), providers, "warm", "plain")
	if code != 1 || !strings.Contains(out, "FAILED: image plain: its server gives neither an ETag nor a date") {
		t.Errorf("code %d\n%s", code, out)
	}
}

func TestAHostThatFailsKeepsNoOther(t *testing.T) {
	k, providers, _ := published(t, func(w http.ResponseWriter, content []byte) {
		w.Header().Set("ETag", `"1"`)
		whole(w, content)
	})
	k.pools[0].err = provider.Permanentf("pool default is not active")
	out, problems, code := run(t.Context(), providers, "warm", "--all")
	if code != 1 || !strings.Contains(problems, "2 of 4 images could not be warmed") {
		t.Errorf("code %d\n%s", code, problems)
	}
	line(t, out, "hv/a/default: FAILED: pool default is not active")
	line(t, out, "hv/b/default: image proven was fetched")
	line(t, out, "hv/b/default: image plain was fetched")
}

func TestInterruptedWarmLeavesNothing(t *testing.T) {
	begun := make(chan struct{}, 1)
	k, providers, _ := published(t, func(w http.ResponseWriter, content []byte) {
		_, _ = w.Write(content[:128<<10])
		w.(http.Flusher).Flush()
		begun <- struct{}{}
	})
	for _, p := range k.pools {
		p.stuck = true
	}
	ctx, cancel := context.WithCancel(t.Context())
	go func() { // ends with the request
		<-begun
		cancel()
	}()
	if out, _, code := run(ctx, providers, "warm", "proven"); code != 130 {
		t.Errorf("code %d, want 130\n%s", code, out)
	}
	for _, p := range k.pools {
		if names := p.names(); len(names) != 0 {
			t.Errorf("%s: left %q", p, names)
		}
	}
}

// TestWarmWaitsForAnotherNode that is sending the image to a host they share.
func TestWarmWaitsForAnotherNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, providers := scene(t)
		k := providers["hv"].(*keeper)
		declared, short := id("9")
		k.catalog.Entries["new"] = image.Entry{URL: "https://cloud.example/new", SHA256: declared}
		sending := k.pools[0].stock(t, "9", false, 0, 0)
		time.AfterFunc(30*time.Second, func() {
			k.pools[0].put(image.Volume{Name: sending + ".1." + short + ".ready", ModifiedAt: time.Now()})
		})
		out, problems, code := run(t.Context(), providers, "warm", "new", "--target", "a")
		if code != 0 {
			t.Errorf("code %d\n%s", code, problems)
		}
		line(t, out, "hv/a/default: image new: another node is sending it: waiting")
		line(t, out, "hv/a/default: image new is there already")
	})
}

func TestEveryGoesOnUntilCtrlC(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, providers := scene(t)
		ctx, cancel := context.WithTimeout(t.Context(), 150*time.Minute)
		defer cancel()
		out, _, code := run(ctx, providers, "warm", "debian-12", "--target", "a", "--every", "1h")
		if code != 0 || strings.Count(out, "is there already") != 3 {
			t.Errorf("code %d, want 0 and three rounds\n%s", code, out)
		}
	})
}
