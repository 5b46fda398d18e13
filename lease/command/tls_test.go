package command

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/egress-proxies/egress/lease/api"
	"github.com/egress-proxies/egress/lease/leasetest"
)

// writeCertificate writes a self-signed one with the serial number.
func writeCertificate(t *testing.T, certFile, keyFile string, serial int64) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(serial), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for path, block := range map[string]*pem.Block{certFile: {Type: "CERTIFICATE", Bytes: cert}, keyFile: {Type: "PRIVATE KEY", Bytes: der}} {
		if err := os.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func TestCertificateIsReadAgain(t *testing.T) {
	dir := t.TempDir()
	c := &certificate{certFile: filepath.Join(dir, "cert"), keyFile: filepath.Join(dir, "key")}
	writeCertificate(t, c.certFile, c.keyFile, 1)
	if err := c.load(); err != nil {
		t.Fatal(err)
	}
	listener, err := tls.Listen("tcp", "127.0.0.1:0", c.config())
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			_ = conn.(*tls.Conn).Handshake()
			_ = conn.Close()
		}
	}()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go follow(ctx, hclog.NewNullLogger(), "certificate", c.load, c.certFile, c.keyFile)
	serves := func(serial int64) {
		t.Helper()
		leasetest.Until(t, 10*time.Second, "the certificate is served", func() error {
			conn, err := tls.Dial("tcp", listener.Addr().String(), &tls.Config{InsecureSkipVerify: true})
			if err != nil {
				return err
			}
			defer conn.Close()
			if got := conn.ConnectionState().PeerCertificates[0].SerialNumber.Int64(); got != serial {
				return errors.New("the old one")
			}
			return nil
		})
	}
	serves(1)
	writeCertificate(t, c.certFile, c.keyFile, 2)
	serves(2)
	if err := os.WriteFile(c.certFile, []byte("nonsense"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := c.load(); err == nil {
		t.Error("nonsense was accepted")
	}
	serves(2)
}

// authority signs certificates of the loopback address.
type authority struct {
	t    *testing.T
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T, file string) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
	return &authority{t, cert, key}
}

// write writes a certificate with the serial number.
func (a *authority) write(certFile, keyFile string, serial int64) {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(serial), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}
	cert, err := x509.CreateCertificate(rand.Reader, template, a.cert, &key.PublicKey, a.key)
	if err != nil {
		a.t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		a.t.Fatal(err)
	}
	for path, block := range map[string]*pem.Block{certFile: {Type: "CERTIFICATE", Bytes: cert}, keyFile: {Type: "PRIVATE KEY", Bytes: der}} {
		if err := os.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
			a.t.Fatal(err)
		}
	}
}

// secured asks replicas over TLS.
type secured struct {
	t    *testing.T
	http *http.Client
	// serial is that of the certificate that the last answer came with.
	serial int64
}

// acquire gives the status of an acquire with the token.
func (s *secured) acquire(r *replica, token string) (status int, err error) {
	request, err := http.NewRequestWithContext(s.t.Context(), http.MethodPost, "https://"+r.address+api.PathLeases, strings.NewReader(`{"ttl":"1s"}`))
	if err != nil {
		return 0, err
	}
	request.Header.Set("Authorization", "Bearer "+token)
	response, err := s.http.Do(request)
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	s.serial = response.TLS.PeerCertificates[0].SerialNumber.Int64()
	return response.StatusCode, nil
}

// answers waits until the replica answers the token with the status, under the
// certificate of the serial number.
func (s *secured) answers(r *replica, token string, want int, serial int64) {
	s.t.Helper()
	leasetest.Until(s.t, time.Minute, fmt.Sprintf("%s answers %d with certificate %d", r.address, want, serial), func() error {
		status, err := s.acquire(r, token)
		if err == nil && (status != want || s.serial != serial) {
			err = fmt.Errorf("status %d, certificate %d", status, s.serial)
		}
		return err
	})
}

// Two replicas over TLS, of which one passes requests on to the other, take new
// tokens and new certificates without a restart.
func TestTokensAndCertificatesChangeUnderway(t *testing.T) {
	t.Parallel()
	consul := leasetest.StartConsul(t)
	for i := range 20 {
		consul.Proxy(fmt.Sprintf("p%d", i), "127.0.0.1", 3000+i, "", nil)
	}
	dir := t.TempDir()
	file := func(name string) string { return filepath.Join(dir, name) }
	tokens := func(text string) {
		t.Helper()
		if err := os.WriteFile(file("tokens"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	a := newAuthority(t, file("ca"))
	a.write(file("cert"), file("key"), 2)
	tokens(`{"crawler":{"token":"the-first-of-the-tokens","scopes":["lease"]}}`)
	var replicas []*replica
	for range 2 {
		replicas = append(replicas, newReplica(t, consul.Address, "--store", "consul", "--token-file", file("tokens"),
			"--tls-cert", file("cert"), "--tls-key", file("key"), "--ca-file", file("ca")))
	}
	authorities := x509.NewCertPool()
	authorities.AddCert(a.cert)
	// A new connection each time, which shows the certificate of the time.
	s := &secured{t: t, http: &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: authorities}, DisableKeepAlives: true}}}
	each := func(token string, want int, serial int64) {
		t.Helper()
		for _, r := range replicas {
			s.answers(r, token, want, serial)
		}
	}
	each("the-first-of-the-tokens", http.StatusCreated, 2)
	each("the-second-of-the-tokens", http.StatusUnauthorized, 2)
	tokens(`{"crawler":{"token":"the-second-of-the-tokens","scopes":["lease"]},"viewer":{"token":"the-third-of-the-tokens","scopes":["read"]}}`)
	each("the-second-of-the-tokens", http.StatusCreated, 2)
	each("the-first-of-the-tokens", http.StatusUnauthorized, 2)
	each("the-third-of-the-tokens", http.StatusForbidden, 2)
	a.write(file("cert"), file("key"), 3)
	each("the-second-of-the-tokens", http.StatusCreated, 3)
	tokens(`{"crawler":`) // nonsense changes nothing
	a.write(file("cert"), file("key"), 4)
	each("the-second-of-the-tokens", http.StatusCreated, 4)
}

// A fresh start without Consul grants nothing and says why.
func TestFreshStartWithoutConsulGrantsNothing(t *testing.T) {
	t.Parallel()
	consul := leasetest.StartConsul(t)
	consul.Proxy("p", "127.0.0.1", 3000, "", nil)
	link := leasetest.NewLink(t, consul.Address)
	link.Cut()
	memory, stored := newReplica(t, link.Address, "--store", "memory"), newReplica(t, link.Address, "--store", "consul")
	for _, r := range []*replica{memory, stored} {
		leasetest.Until(t, time.Minute, "it says that it waits for Consul", func() error {
			ready, err := r.readiness()
			if err == nil && (ready.Ready || !strings.Contains(ready.Reason, "no answer from Consul yet")) {
				err = fmt.Errorf("%+v", ready)
			}
			return err
		})
	}
	_, err := memory.client.Acquire(t.Context(), api.Acquire{}, "")
	var p *api.Problem
	if !errors.As(err, &p) || p.Code() != api.CodeNotReady || p.RetryAfterSeconds == 0 {
		t.Errorf("acquire: %v, want %s and when to come back", err, api.CodeNotReady)
	}
	link.Heal()
	for _, r := range []*replica{memory, stored} {
		r.ready()
		if _, err := r.client.Acquire(t.Context(), api.Acquire{}, ""); err != nil {
			t.Error(err)
		}
	}
}
