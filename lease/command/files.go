package command

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
)

// filePoll is how often files are looked at; polling sees a rewritten file, a
// replaced one and a changed symbolic link alike.
const filePoll = time.Second

// follow calls load when one of the files is another one than before, until ctx
// ends. What can't be loaded is told and leaves everything as it was.
func follow(ctx context.Context, logger hclog.Logger, what string, load func() error, paths ...string) {
	last := stamps(paths)
	ticker := time.NewTicker(filePoll)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		now := stamps(paths)
		if now == last {
			continue
		}
		last = now
		if err := load(); err != nil {
			logger.Warn("kept what was read before", "what", what, "error", err)
			continue
		}
		logger.Info("read again", "what", what)
	}
}

// stamps tells versions of files apart.
func stamps(paths []string) (text string) {
	for _, path := range paths {
		if info, err := os.Stat(path); err == nil {
			text += fmt.Sprintf("%d %d %v;", info.ModTime().UnixNano(), info.Size(), info.Sys())
		}
	}
	return text
}

// certificate is the service's own, read again when its files change.
type certificate struct {
	certFile, keyFile string
	current           atomic.Pointer[tls.Certificate]
}

func (c *certificate) load() error {
	pair, err := tls.LoadX509KeyPair(c.certFile, c.keyFile)
	if err != nil {
		return fmt.Errorf("--tls-cert %s, --tls-key %s: %w", c.certFile, c.keyFile, err)
	}
	c.current.Store(&pair)
	return nil
}

func (c *certificate) config() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS12,
		NextProtos: []string{"h2", "http/1.1"},
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			return c.current.Load(), nil
		},
	}
}

// roots are the authorities of a file; nil, for an empty path, the system's.
func roots(path string) (*x509.CertPool, error) {
	if path == "" {
		return nil, nil
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("CA file: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(data) {
		return nil, fmt.Errorf("CA file %s: want certificates in PEM", path)
	}
	return pool, nil
}
