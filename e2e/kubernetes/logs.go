package kubernetes

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"strconv"
	"time"
)

// logServer is the part of a kubelet's HTTPS endpoint that `kubectl logs` uses.
type logServer struct {
	port   string
	server *http.Server
	done   chan error
}

func serveLogs(n *Node) (*logServer, error) {
	certificate, err := selfSigned()
	if err != nil {
		return nil, err
	}
	listener, err := tls.Listen("tcp", net.JoinHostPort(n.c.address, "0"), &tls.Config{
		Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS12,
	})
	if err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /containerLogs/{namespace}/{pod}/{container}", n.serveLog)
	s := &logServer{
		server: &http.Server{Handler: mux, ErrorLog: log.New(io.Discard, "", 0)},
		port:   strconv.Itoa(listener.Addr().(*net.TCPAddr).Port), done: make(chan error, 1),
	}
	go func() { s.done <- s.server.Serve(listener) }() // close waits for it
	return s, nil
}

func (s *logServer) close() error {
	err := s.server.Close()
	if ended := <-s.done; !errors.Is(ended, http.ErrServerClosed) {
		err = errors.Join(err, ended)
	}
	return err
}

// serveLog answers with the log, and with follow until the container's end.
func (n *Node) serveLog(w http.ResponseWriter, r *http.Request) {
	worker, err := n.find(r.PathValue("namespace"), r.PathValue("pod"))
	if err != nil {
		http.Error(w, err.Error(), http.StatusNotFound)
		return
	}
	query := r.URL.Query()
	offset := 0
	if tail := query.Get("tailLines"); tail != "" {
		lines, err := strconv.Atoi(tail)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		text, _ := worker.output.from(0)
		offset = tailOffset(text, lines)
	}
	flush := http.NewResponseController(w)
	if query.Get("follow") != "true" {
		text, _ := worker.output.from(offset)
		_, _ = w.Write(text)
		return
	}
	_ = worker.output.follow(r.Context(), offset, func(text []byte) error {
		if _, err := w.Write(text); err != nil {
			return err
		}
		return flush.Flush()
	})
}

// tailOffset is where the last lines begin.
func tailOffset(text []byte, lines int) int {
	end := len(text)
	if lines == 0 || end == 0 {
		return end
	}
	at := end
	if bytes.HasSuffix(text, []byte("\n")) {
		at--
	}
	for ; lines > 0 && at > 0; lines-- {
		at = bytes.LastIndexByte(text[:at], '\n')
	}
	return at + 1
}

// selfSigned is a certificate as a kubelet makes for itself, which the API
// server takes unless it was told an authority.
func selfSigned() (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, err
}
