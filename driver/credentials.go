package driver

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"

	"github.com/hashicorp/go-hclog"

	"github.com/egress-proxies/egress/driver/probe/reload"
	"github.com/egress-proxies/egress/provider"
)

// credentials finds what clients present to a proxy.
type credentials struct {
	path   string
	file   *reload.File[map[string]provider.Credentials] // nil without a path
	logger hclog.Logger

	mu      sync.Mutex // guards problem
	problem string     // what was told of the file last; empty is nothing
}

func newCredentials(path string, logger hclog.Logger) *credentials {
	c := &credentials{path: path, logger: logger}
	if path != "" {
		c.file = reload.NewFile(path, parseCredentials)
	}
	return c
}

// parseCredentials never puts a password into its errors.
func parseCredentials(content []byte) (map[string]provider.Credentials, error) {
	var entries map[string]struct {
		Username string `json:"username"`
		Password string `json:"password"`
	}
	if err := json.Unmarshal(content, &entries); err != nil {
		var mistyped *json.UnmarshalTypeError
		if errors.As(err, &mistyped) {
			// Its text quotes a number, which may be the password.
			want := "a string"
			if mistyped.Type.Kind() != reflect.String {
				want = "an object"
			}
			err = fmt.Errorf("byte %d: want %s", mistyped.Offset, want)
		}
		return nil, fmt.Errorf(`want {"name":{"username":"…","password":"…"}}: %w`, err)
	}
	parsed := make(map[string]provider.Credentials, len(entries))
	for _, name := range slices.Sorted(maps.Keys(entries)) {
		entry := entries[name]
		if entry.Username == "" || strings.Contains(entry.Username, ":") {
			return nil, fmt.Errorf("entry %q: want a username without a colon (RFC 7617)", name)
		}
		parsed[name] = provider.Credentials{Username: entry.Username, Password: entry.Password}
	}
	return parsed, nil
}

// lookup gives the credentials of a task, as the file has them now. A file that
// can't be read is transient, since it may be on its way; a name that it doesn't
// have is permanent.
func (c *credentials) lookup(auth authConfig) (provider.Credentials, error) {
	if auth.inline() || auth.Name == "" {
		return provider.Credentials{Username: auth.Username, Password: auth.Password}, nil
	}
	if c.file == nil {
		return provider.Credentials{}, provider.Permanentf(
			"auth: name %q: the plugin has no credentials_file to find it in", auth.Name)
	}
	entries, ok, err := c.file.Get()
	c.tell(err)
	if !ok {
		return provider.Credentials{}, provider.Transientf("auth: name %q: read credentials_file: %w", auth.Name, err)
	}
	found, ok := entries[auth.Name]
	if !ok {
		return provider.Credentials{}, provider.Permanentf(
			"auth: name %q: credentials_file %q has no such entry", auth.Name, c.path)
	}
	return found, nil
}

// tell logs what is wrong with the file when that changes: it is looked at for
// every task, all the time.
func (c *credentials) tell(err error) {
	var problem string
	if err != nil {
		problem = err.Error()
	}
	c.mu.Lock()
	changed := c.problem != problem
	c.problem = problem
	c.mu.Unlock()
	switch {
	case !changed:
	case err != nil:
		c.logger.Error("credentials_file can't be used, its last good content counts", "error", err)
	default:
		c.logger.Info("credentials_file is good again", "path", c.path)
	}
}
