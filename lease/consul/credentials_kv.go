package consul

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/hashicorp/consul/api"
)

// FromKV lets credentials also come from Consul's key-value store: the key is
// the prefix and the name, the value {"username":"…","password":"…"}. What the
// file has wins.
func (c *Credentials) FromKV(client *api.Client, prefix string) {
	c.client, c.prefix = client, prefix
}

// followKV keeps the credentials of the store until ctx ends. While Consul does
// not answer, those that are known stay.
func (c *Credentials) followKV(ctx context.Context, changed func()) {
	var index uint64
	for ctx.Err() == nil {
		call, done := context.WithTimeout(ctx, queryTimeout)
		options := (&api.QueryOptions{WaitIndex: index, WaitTime: waitTime}).WithContext(call)
		pairs, meta, err := c.client.KV().List(c.prefix, options)
		done()
		if err != nil {
			if ctx.Err() == nil && index != 0 {
				c.logger.Warn("kept the credentials of Consul that were known", "error", err)
			}
			index = 0
			pause(ctx, time.Second)
			continue
		}
		if meta.LastIndex != index {
			c.takeKV(pairs)
			changed()
		}
		index = nextIndex(index, meta.LastIndex)
	}
}

// takeKV reads the pairs. One that can't be read is told by its key, never by
// its value, and left out.
func (c *Credentials) takeKV(pairs api.KVPairs) {
	known := map[string]credential{}
	for _, pair := range pairs {
		name := strings.TrimPrefix(pair.Key, c.prefix)
		if name == "" {
			continue
		}
		entry, err := parseCredential(pair.Value)
		if err != nil {
			c.logger.Warn("left a credential of Consul out", "key", pair.Key, "error", err)
			continue
		}
		known[name] = entry
	}
	c.stored.Store(&known)
}

func parseCredential(data []byte) (credential, error) {
	var entry credential
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&entry); err != nil {
		return credential{}, fmt.Errorf(`want {"username":"…","password":"…"}: %w`, err)
	}
	if entry.Username == "" || strings.Contains(entry.Username, ":") {
		return credential{}, fmt.Errorf("want a username without a colon")
	}
	return entry, nil
}
