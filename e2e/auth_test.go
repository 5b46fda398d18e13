package e2e_test

import (
	"context"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"testing"

	"github.com/egress-proxies/egress/lease/api"
)

// credentials are those of the entry "crawl". The password has what must be
// encoded in a URL.
const (
	username = "crawler"
	password = "p@:#$/%"
)

// credentialsFile writes the file that the plugin and the lease service read.
func credentialsFile() string {
	file := filepath.Join(buildDir, "credentials.json")
	text := `{"crawl": {"username": "` + username + `", "password": "` + password + `"}}`
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		panic(err)
	}
	return file
}

func TestProxyThatAsksForCredentials(t *testing.T) {
	f := shared(t)
	lease := f.leaseService(map[string]string{"args": `["--credentials-file", "` + credentialsFile() + `"]`})
	f.fleet(map[string]string{"count": "1", "auth": "crawl"})
	// The probe presents the same credentials as clients, or it would not pass.
	entry := f.passing(1)[0]
	if got := entry.Service.Meta["auth"]; got != "crawl" {
		t.Errorf("meta auth = %q, want the name of the credentials", got)
	}
	for key, value := range entry.Service.Meta {
		if value == password {
			t.Errorf("the catalog holds the password in meta %s", key)
		}
	}

	bare := proxyURL(entry)
	if _, err := f.fetch(t.Context(), bare, f.Origin.HTTP+"/"); err == nil {
		t.Error("the proxy served a client without credentials")
	}
	wrong := *bare
	wrong.User = url.UserPassword(username, "wrong")
	if _, err := f.fetch(t.Context(), &wrong, f.Origin.HTTPS+"/"); err == nil {
		t.Error("the proxy served a client with a wrong password")
	}

	granted := lease.acquire(api.Acquire{TTL: api.Duration(patience)})
	if granted.Username != username || granted.Password != password {
		t.Errorf("lease has user %q and a password of length %d", granted.Username, len(granted.Password))
	}
	f.worksURL(granted.URL)
	lease.release(granted)
}

func TestLeaseIsReportedAndComesBack(t *testing.T) {
	f := shared(t)
	lease := f.leaseService(nil)
	f.fleet(map[string]string{"count": "1"})
	f.passing(1)
	target := "blocked.example"
	granted := lease.acquire(api.Acquire{Target: target, TTL: api.Duration(patience)})
	// Capacity is one: another crawler gets nothing, and is told so.
	err := lease.call(t.Context(), http.MethodPost, api.PathLeases, api.Acquire{}, nil, http.StatusConflict)
	if err != nil {
		t.Error(err)
	}
	report := api.Report{Result: "blocked"}
	if err := lease.call(t.Context(), http.MethodPost, api.PathLeases+"/"+granted.ID+"/report", report, nil, http.StatusOK); err != nil {
		t.Error(err)
	}
	lease.release(granted)
	// Banned by that site only.
	err = lease.call(t.Context(), http.MethodPost, api.PathLeases, api.Acquire{Target: target}, nil, http.StatusConflict)
	if err != nil {
		t.Error(err)
	}
	lease.release(lease.acquire(api.Acquire{Target: "other.example"}))
}

func TestProxyOfSomebodyElseIsLeasedLikeOwn(t *testing.T) {
	f := shared(t)
	// Somebody else's proxy: one of another job, unknown to the test's service.
	theirs := f.name + "-theirs"
	f.load("process", theirs, map[string]string{"count": "1", "service": theirs})
	var endpoint string
	f.until("somebody's proxy passes", func(ctx context.Context) error {
		entries, err := f.Consul.Passing(ctx, theirs)
		if err != nil || len(entries) != 1 {
			return errNotYet(len(entries), err)
		}
		endpoint = endpointHCL(entries[0])
		return nil
	})
	f.load("external", f.name, map[string]string{"endpoints": "{ a = " + endpoint + " }", "attributes": `{ seller = "x" }`})
	entry := f.passing(1)[0]
	if entry.Service.Meta["provider"] != "bought" || entry.Service.Meta["seller"] != "x" {
		t.Errorf("meta = %v", entry.Service.Meta)
	}
	f.works(proxyURL(entry))

	// When it is gone it isn't passing any more, and the task goes on.
	f.stop(theirs)
	f.until("the endpoint is critical", func(ctx context.Context) error {
		entries, err := f.Consul.Services(ctx, f.name)
		if err != nil || len(entries) != 1 || entries[0].Checks.AggregatedStatus() != "critical" {
			return errNotYet(len(entries), err)
		}
		return nil
	})
	// An external endpoint has its ups and downs.
	f.running(f.name, 1)
}
