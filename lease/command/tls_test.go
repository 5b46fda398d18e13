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
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

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
