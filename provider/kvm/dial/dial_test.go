package dial

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/egress-proxies/egress/provider"
)

func TestForwardedSocket(t *testing.T) {
	srv, target := newServer(t)
	link, err := Connect(t.Context(), target)
	if err != nil {
		t.Fatal(err)
	}
	defer link.Close()
	for range 3 { // many connections, one handshake
		conn, err := link.Open(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if _, err := conn.Write([]byte("hello")); err != nil {
			t.Fatal(err)
		}
		b := make([]byte, 5)
		if _, err := io.ReadFull(conn, b); err != nil || string(b) != "hello" {
			t.Errorf("read %q, %v", b, err)
		}
	}
	if srv.handshook != 1 {
		t.Errorf("%d handshakes for three connections, want 1", srv.handshook)
	}
}

// Case 38: what may appear later is transient, what stays wrong is permanent.
func TestFailures(t *testing.T) {
	other, otherKey := newSigner(t)
	for name, test := range map[string]struct {
		spoil  func(s *server, target *Target)
		class  error
		reason provider.Reason
	}{
		"key missing":         {func(s *server, g *Target) { g.KeyFile += ".none" }, provider.ErrTransient, provider.SSHMaterialUnavailable},
		"key broken":          {func(s *server, g *Target) { s.file("id", []byte("rubbish")) }, provider.ErrPermanent, provider.SSHMaterialUnavailable},
		"known_hosts missing": {func(s *server, g *Target) { g.KnownHostsFile += ".none" }, provider.ErrTransient, provider.SSHMaterialUnavailable},
		"known_hosts broken":  {func(s *server, g *Target) { s.file("known_hosts", []byte("x y z\n")) }, provider.ErrPermanent, provider.SSHMaterialUnavailable},
		"host unknown":        {func(s *server, g *Target) { s.file("known_hosts", nil) }, provider.ErrPermanent, provider.SSHHandshakeFailed},
		"host key changed":    {func(s *server, g *Target) { s.knows(other.PublicKey()) }, provider.ErrPermanent, provider.SSHHandshakeFailed},
		"key not let in":      {func(s *server, g *Target) { s.file("id", otherKey) }, provider.ErrPermanent, provider.Unauthorized},
		"port closed":         {func(s *server, g *Target) { _ = s.listener.Close() }, provider.ErrTransient, provider.Unreachable},
		"server says nothing": {func(s *server, g *Target) {
			s.set(func(s *server) { s.stall = true })
			g.HandshakeTimeout = 500 * time.Millisecond
		}, provider.ErrTransient, provider.SSHHandshakeFailed},
		"forwarding forbidden": {func(s *server, g *Target) { s.set(func(s *server) { s.prohibit = true }) }, provider.ErrPermanent, provider.Forbidden},
		"no daemon":            {func(s *server, g *Target) { g.Address.Socket += ".none" }, provider.ErrTransient, provider.LibvirtConnectFailed},
	} {
		t.Run(name, func(t *testing.T) {
			srv, target := newServer(t)
			test.spoil(srv, &target)
			link, err := Connect(t.Context(), target)
			if err == nil {
				defer link.Close()
				_, err = link.Open(t.Context())
			}
			var told *Error
			if !errors.As(err, &told) || told.Reason != test.reason || provider.Classify(err) != test.class {
				t.Errorf("%v (class %v), want %s and %v", err, provider.Classify(err), test.reason, test.class)
			}
		})
	}
}

// Rotated files work without a restart (case 38).
func TestRotatedMaterial(t *testing.T) {
	srv, target := newServer(t)
	connect := func() error {
		link, err := Connect(t.Context(), target)
		if err == nil {
			link.Close()
		}
		return err
	}
	if err := connect(); err != nil {
		t.Fatal(err)
	}
	fresh := srv.newClientKey()
	if err := connect(); err == nil {
		t.Fatal("the old key is still let in")
	}
	srv.file("id", fresh)
	if err := connect(); err != nil {
		t.Errorf("with the rotated key: %v", err)
	}
}

func TestInsecureHostKey(t *testing.T) {
	_, target := newServer(t)
	target.KnownHostsFile, target.InsecureHostKey = "", true
	link, err := Connect(t.Context(), target)
	if err != nil {
		t.Fatal(err)
	}
	link.Close()
}

func TestADeadLinkIsNoticedWithinTwoIntervals(t *testing.T) {
	const interval = time.Second
	srv, target := newServer(t)
	target.Keepalive = interval
	link, err := Connect(t.Context(), target)
	if err != nil {
		t.Fatal(err)
	}
	defer link.Close()
	select {
	case <-link.Done():
		t.Fatal("a link that answers was ended")
	case <-time.After(2*interval + interval/2):
	}
	srv.set(func(s *server) { s.mute = true })
	begin := time.Now()
	select {
	case <-link.Done():
		// One interval until the question, one for the answer, and some slack.
		if took := time.Since(begin); took > 2*interval+2*time.Second {
			t.Errorf("noticed after %s, want two intervals of %s", took, interval)
		}
	case <-time.After(30 * time.Second):
		t.Fatal("a dead link was not noticed")
	}
}

func TestACutLinkIsDone(t *testing.T) {
	srv, target := newServer(t)
	link, err := Connect(t.Context(), target)
	if err != nil {
		t.Fatal(err)
	}
	defer link.Close()
	srv.cut()
	select {
	case <-link.Done():
	case <-time.After(30 * time.Second):
		t.Fatal("a cut link is not done")
	}
}

func TestConnectEndsWithItsContext(t *testing.T) {
	srv, target := newServer(t)
	srv.set(func(s *server) { s.stall = true })
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	begin := time.Now()
	_, err := Connect(ctx, target)
	if err == nil || time.Since(begin) > 5*time.Second {
		t.Errorf("connect to a server that says nothing: %v after %s, want the context's end", err, time.Since(begin))
	}
}

func TestLocalSocket(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "none")
	link, err := Connect(t.Context(), Target{Address: Address{Socket: missing}})
	if err != nil {
		t.Fatal(err)
	}
	defer link.Close()
	_, err = link.Open(t.Context())
	var told *Error
	if !errors.As(err, &told) || told.Reason != provider.LibvirtConnectFailed || provider.Classify(err) != provider.ErrTransient || !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a missing socket: %v, want LibvirtConnectFailed and ErrTransient", err)
	}
}

func TestParseAddress(t *testing.T) {
	for _, test := range []struct{ address, user, socket, want string }{
		{"unix:///run/x", "", "", "unix:///run/x"},
		{"ssh://u@h", "", "", "ssh://u@h:22 (socket /run/libvirt/libvirt-sock)"},
		{"ssh://H:2222", "u", "/s", "ssh://u@h:2222 (socket /s)"},
		{"ssh://u@[2001:db8::1]:22", "", "", "ssh://u@[2001:db8::1]:22 (socket /run/libvirt/libvirt-sock)"},
	} {
		got, err := ParseAddress(test.address, test.user, test.socket)
		if err != nil || got.String() != test.want {
			t.Errorf("%q reads as %q, %v, want %q", test.address, got, err, test.want)
		}
	}
}

func TestAddressesThatCantWork(t *testing.T) {
	for address, want := range map[string]string{
		"":                   "want unix:///path or ssh://user@host:22",
		"bogus:port:1":       "want unix:///path or ssh://user@host:22",
		"tcp://h":            "want unix:///path or ssh://user@host:22",
		"unix://run/x":       "three slashes",
		"ssh://u@":           "want ssh://user@host:22",
		"ssh://h":            "no user",
		"ssh://u:secret@h":   "want no password",
		"ssh://u@h/run/sock": "give the libvirt socket in the key socket",
		"ssh://u@h:0":        `port "0": want a number from 1 to 65535`,
		"ssh://u@h:99999":    `port "99999": want a number from 1 to 65535`,
	} {
		if got, err := ParseAddress(address, "", ""); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q reads as %v, %v, want an error with %q", address, got, err, want)
		} else if strings.Contains(err.Error(), "secret") {
			t.Errorf("the error shows the password: %v", err)
		}
	}
}

func FuzzParseAddress(f *testing.F) {
	f.Add("ssh://u@h:22", "", "")
	f.Add("unix:///x", "u", "/s")
	f.Fuzz(func(t *testing.T, address, user, socket string) {
		a, err := ParseAddress(address, user, socket)
		if err == nil && (a.Socket == "" || a.Socket[0] != '/' || (a.SSH != "" && a.User == "")) {
			t.Errorf("%q, %q, %q reads as %+v", address, user, socket, a)
		}
	})
}
