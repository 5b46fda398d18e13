package consul

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"sync/atomic"

	"github.com/hashicorp/consul/api"
	"github.com/hashicorp/go-hclog"
	"golang.org/x/sync/errgroup"
)

// Credentials are the users and passwords of proxies, by name, from the file
// that the driver reads too: {"name":{"username":"…","password":"…"}}.
type Credentials struct {
	path   string
	logger hclog.Logger
	byName atomic.Pointer[map[string]credential]

	// client and prefix are set when credentials also come from Consul; stored
	// are those.
	client *api.Client
	prefix string
	stored atomic.Pointer[map[string]credential]
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
	c.stored.Store(&map[string]credential{})
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
	if !ok {
		entry, ok = (*c.stored.Load())[name]
	}
	return entry.Username, entry.Password, ok
}

// Known says whether there are credentials of the name.
func (c *Credentials) Known(name string) bool {
	_, _, ok := c.Get(name)
	return ok
}

// Run follows the file and the store until ctx ends, and calls changed after
// each change.
func (c *Credentials) Run(ctx context.Context, changed func()) error {
	var group errgroup.Group
	if c.path != "" {
		group.Go(func() error {
			c.followFile(ctx, changed)
			return nil
		})
	}
	if c.client != nil {
		group.Go(func() error {
			c.followKV(ctx, changed)
			return nil
		})
	}
	return group.Wait()
}

func (c *Credentials) followFile(ctx context.Context, changed func()) {
	watchFile(ctx, c.path, filePoll, func() {
		if err := c.load(); err != nil {
			c.logger.Warn("kept the credentials that were known", "error", err)
			return
		}
		c.logger.Info("read the credentials again", "path", c.path)
		changed()
	})
}
