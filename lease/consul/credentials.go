package consul

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"sync/atomic"

	"github.com/hashicorp/go-hclog"
)

// Credentials are the users and passwords of proxies, by name, from the file
// that the driver reads too: {"name":{"username":"…","password":"…"}}.
type Credentials struct {
	path   string
	logger hclog.Logger
	byName atomic.Pointer[map[string]credential]
}

type credential struct {
	Username string `json:"username"`
	Password string `json:"password"`
}

// LoadCredentials reads the file. An empty path knows no credentials.
func LoadCredentials(path string, logger hclog.Logger) (*Credentials, error) {
	if logger == nil {
		logger = hclog.NewNullLogger()
	}
	c := &Credentials{path: path, logger: logger}
	c.byName.Store(&map[string]credential{})
	if path == "" {
		return c, nil
	}
	return c, c.load()
}

func (c *Credentials) load() error {
	data, err := os.ReadFile(c.path)
	if err != nil {
		return fmt.Errorf("credentials file: %w", err)
	}
	byName, err := parseCredentials(data)
	if err != nil {
		return fmt.Errorf("credentials file %s: %w", c.path, err)
	}
	c.byName.Store(&byName)
	return nil
}

// parseCredentials never puts a password into its errors.
func parseCredentials(data []byte) (map[string]credential, error) {
	var byName map[string]credential
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&byName); err != nil {
		return nil, fmt.Errorf(`want {"name":{"username":"…","password":"…"}}: %w`, err)
	}
	for name, entry := range byName {
		if entry.Username == "" || strings.Contains(entry.Username, ":") {
			return nil, fmt.Errorf("%q: want a username without a colon", name)
		}
	}
	return byName, nil
}

// Get is the user and the password of the name.
func (c *Credentials) Get(name string) (username, password string, ok bool) {
	entry, ok := (*c.byName.Load())[name]
	return entry.Username, entry.Password, ok
}

// Known says whether there are credentials of the name.
func (c *Credentials) Known(name string) bool {
	_, ok := (*c.byName.Load())[name]
	return ok
}

// Run reads the file again when it changes, until ctx ends, and calls changed
// then.
func (c *Credentials) Run(ctx context.Context, changed func()) error {
	if c.path == "" {
		<-ctx.Done()
		return nil
	}
	watchFile(ctx, c.path, filePoll, func() {
		if err := c.load(); err != nil {
			c.logger.Warn("kept the credentials that were known", "error", err)
			return
		}
		c.logger.Info("read the credentials again", "path", c.path)
		changed()
	})
	return nil
}
