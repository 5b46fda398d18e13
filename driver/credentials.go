package driver

import (
	"encoding/json"
	"fmt"

	"github.com/egress-proxies/egress/driver/probe/reload"
	"github.com/egress-proxies/egress/provider"
)

// credentials finds what clients present to a proxy.
type credentials struct {
	path string
	file *reload.File[map[string]provider.Credentials]
}

func newCredentials(path string) *credentials {
	if path == "" {
		return &credentials{}
	}
	return &credentials{path: path, file: reload.NewFile(path, parseCredentials)}
}

func parseCredentials(content []byte) (map[string]provider.Credentials, error) {
	var entries map[string]struct {
		Username string `json:"username"`
		Password string `json:"password"`
	}
	if err := json.Unmarshal(content, &entries); err != nil {
		return nil, fmt.Errorf(`want {"name":{"username":"…","password":"…"}}: %w`, err)
	}
	parsed := make(map[string]provider.Credentials, len(entries))
	for name, entry := range entries {
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
