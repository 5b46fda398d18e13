package origin_test

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"net/http"
	"os"
	"testing"

	"github.com/egress-proxies/egress/e2e/origin"
)

func start(t *testing.T) *origin.Origin {
	t.Helper()
	o, err := origin.Start(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := o.Close(); err != nil {
			t.Error(err)
		}
	})
	return o
}

func TestHTTPSIsTrustedThroughItsAuthorityOnly(t *testing.T) {
	o := start(t)
	authority, err := os.ReadFile(o.CAFile)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(authority)
	for _, test := range []struct {
		name string
		pool *x509.CertPool
		ok   bool
	}{
		{"unknown authority", x509.NewCertPool(), false},
		{"own authority", pool, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: test.pool}}
			defer transport.CloseIdleConnections()
			response, err := (&http.Client{Transport: transport}).Get(o.HTTPS + "/")
			if (err == nil) != test.ok {
				t.Fatalf("err = %v, want success %v", err, test.ok)
			}
			if err != nil {
				return
			}
			defer func() { _ = response.Body.Close() }()
			var page origin.Page
			if err := json.NewDecoder(response.Body).Decode(&page); err != nil {
				t.Fatal(err)
			}
			if page.Client != "127.0.0.1" || !page.Secure {
				t.Errorf("page = %+v, want a secure request of 127.0.0.1", page)
			}
		})
	}
}

func TestGateHoldsUntilReleased(t *testing.T) {
	o := start(t)
	arrived := o.Hold("x")
	done := make(chan int, 1)
	go func() {
		response, err := http.Get(o.HTTP + "/gate/x")
		if err != nil {
			done <- 0
			return
		}
		_ = response.Body.Close()
		done <- response.StatusCode
	}()
	<-arrived
	select {
	case status := <-done:
		t.Fatalf("answered %d while held", status)
	default:
	}
	o.Release("x")
	if status := <-done; status != http.StatusOK {
		t.Errorf("status after release = %d", status)
	}
}
