package dial

import (
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/knownhosts"
)

// server is an SSH server in this process. It forwards to local sockets and
// misbehaves on demand.
type server struct {
	t        *testing.T
	listener net.Listener
	dir      string
	client   ssh.PublicKey // the key that is let in
	config   *ssh.ServerConfig

	mu        sync.Mutex // guards the fields below
	mute      bool       // answer no keepalive
	prohibit  bool       // refuse to forward
	stall     bool       // say nothing to a new connection
	conns     []net.Conn
	handshook int
}

func newSigner(t *testing.T) (ssh.Signer, []byte) {
	t.Helper()
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	signer, err := ssh.NewSignerFromKey(private)
	if err != nil {
		t.Fatal(err)
	}
	block, err := ssh.MarshalPrivateKey(private, "")
	if err != nil {
		t.Fatal(err)
	}
	return signer, pem.EncodeToMemory(block)
}

// newServer starts one and gives the target that reaches its echo socket.
func newServer(t *testing.T) (*server, Target) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &server{t: t, listener: listener, dir: t.TempDir()}
	s.config = &ssh.ServerConfig{PublicKeyCallback: func(_ ssh.ConnMetadata, key ssh.PublicKey) (*ssh.Permissions, error) {
		s.mu.Lock()
		defer s.mu.Unlock()
		if string(key.Marshal()) != string(s.client.Marshal()) {
			return nil, errors.New("not this key")
		}
		return nil, nil
	}}
	hostKey, _ := newSigner(t)
	s.config.AddHostKey(hostKey)
	target := Target{
		Address: Address{SSH: listener.Addr().String(), User: "egress", Socket: s.echo()},
		KeyFile: s.file("id", s.newClientKey()), KnownHostsFile: s.knows(hostKey.PublicKey()),
	}
	var wait sync.WaitGroup
	wait.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			s.mu.Lock()
			s.conns = append(s.conns, conn)
			stall := s.stall
			s.mu.Unlock()
			if !stall {
				wait.Go(func() { s.serve(conn) })
			}
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		s.cut()
		wait.Wait()
	})
	return s, target
}

func (s *server) newClientKey() []byte {
	signer, private := newSigner(s.t)
	s.mu.Lock()
	s.client = signer.PublicKey()
	s.mu.Unlock()
	return private
}

func (s *server) file(name string, content []byte) string {
	path := filepath.Join(s.dir, name)
	if err := os.WriteFile(path, content, 0o600); err != nil {
		s.t.Fatal(err)
	}
	return path
}

func (s *server) knows(key ssh.PublicKey) string {
	return s.file("known_hosts", []byte(knownhosts.Line([]string{s.listener.Addr().String()}, key)+"\n"))
}

// echo is a socket that says back what it hears.
func (s *server) echo() string {
	path := filepath.Join(s.dir, "sock")
	listener, err := net.Listen("unix", path)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = listener.Close() })
	go func() { // ends with the listener
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() { // ends with the connection
				_, _ = io.Copy(conn, conn)
				_ = conn.Close()
			}()
		}
	}()
	return path
}

func (s *server) set(change func(*server)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(s)
}

func (s *server) cut() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, conn := range s.conns {
		_ = conn.Close()
	}
}

func (s *server) serve(conn net.Conn) {
	defer conn.Close()
	sshConn, channels, requests, err := ssh.NewServerConn(conn, s.config)
	if err != nil {
		return
	}
	s.set(func(s *server) { s.handshook++ })
	go func() { // ends with the connection
		for request := range requests {
			s.mu.Lock()
			mute := s.mute
			s.mu.Unlock()
			if !mute {
				_ = request.Reply(false, nil)
			}
		}
	}()
	for channel := range channels {
		s.forward(channel)
	}
	_ = sshConn.Wait()
}

func (s *server) forward(channel ssh.NewChannel) {
	s.mu.Lock()
	prohibit := s.prohibit
	s.mu.Unlock()
	var open struct {
		Path     string
		Reserved string
		Port     uint32
	}
	if prohibit || channel.ChannelType() != "direct-streamlocal@openssh.com" || ssh.Unmarshal(channel.ExtraData(), &open) != nil {
		_ = channel.Reject(ssh.Prohibited, "open failed")
		return
	}
	socket, err := net.Dial("unix", open.Path)
	if err != nil {
		_ = channel.Reject(ssh.ConnectionFailed, "open failed")
		return
	}
	stream, requests, err := channel.Accept()
	if err != nil {
		_ = socket.Close()
		return
	}
	go ssh.DiscardRequests(requests)
	go func() {
		_, _ = io.Copy(socket, stream)
		_ = socket.Close()
	}()
	go func() {
		_, _ = io.Copy(stream, socket)
		_ = stream.Close()
	}()
}
