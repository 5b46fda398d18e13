package lease

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"
	"time"
)

// The kinds of records. Names that clients choose are hashed, since a key of
// Consul has at most 512 bytes.
const (
	kindLease    = "leases/"
	kindSession  = "sessions/"
	kindCooldown = "cooldowns/"
	kindMark     = "marks/"
)

func leaseKey(id string) string     { return kindLease + id }
func sessionKey(name string) string { return kindSession + hashName(name) }
func markKey(id string) string      { return kindMark + hashName(id) }
func cooldownKey(group, target string) string {
	return kindCooldown + hashName(group+"\x00"+target)
}

func hashName(name string) string {
	sum := sha256.Sum256([]byte(name))
	return hex.EncodeToString(sum[:16])
}

// The records, as stored. Times are wall-clock milliseconds since 1970: another
// process reads them.
type (
	leaseRecord struct {
		Proxy    string      `json:"proxy"`
		Exit     netip.Addr  `json:"exit,omitzero"`
		Target   string      `json:"target,omitempty"`
		Client   string      `json:"client,omitempty"`
		Session  string      `json:"session,omitempty"`
		Mode     SessionMode `json:"mode,omitempty"`
		Selector string      `json:"selector,omitempty"`
		TTL      int64       `json:"ttl_ms"`
		Granted  int64       `json:"granted_ms"`
		Expires  int64       `json:"expires_ms"`
		Renewals int         `json:"renewals,omitempty"`
		Key      string      `json:"key,omitempty"`
		Request  string      `json:"request,omitempty"`
	}
	sessionRecord struct {
		Name    string      `json:"name"`
		Mode    SessionMode `json:"mode"`
		Proxy   string      `json:"proxy"`
		Group   string      `json:"group"`
		Expires int64       `json:"expires_ms"`
	}
	cooldownRecord struct {
		Group   string `json:"group"`
		Target  string `json:"target,omitempty"`
		Strikes int    `json:"strikes"`
		Length  int64  `json:"length_ms"`
		Cooling bool   `json:"cooling"`
		Until   int64  `json:"until_ms"`
	}
	markRecord struct {
		Proxy  string    `json:"proxy"`
		Mark   Mark      `json:"mark"`
		By     string    `json:"by,omitempty"`
		Reason string    `json:"reason,omitempty"`
		At     time.Time `json:"at"`
	}
)

// put appends the record to the changes.
func (p *Pool) put(key string, record any) {
	value, err := json.Marshal(record)
	if err != nil {
		panic(fmt.Sprintf("lease: record %s: %v", key, err)) // only strings and numbers
	}
	p.changes = append(p.changes, Change{Key: key, Value: value})
}

func (p *Pool) store(h *held) {
	if !p.durable {
		return
	}
	p.put(leaseKey(h.id), leaseRecord{
		Proxy: h.entry.proxy.ID, Exit: h.exit, Target: h.target, Client: h.client,
		Session: h.session, Mode: h.mode, Selector: h.selector.String(),
		TTL: h.ttl.Milliseconds(), Granted: p.time(h.granted).UnixMilli(), Expires: p.time(h.at).UnixMilli(),
		Renewals: h.renewals, Key: h.key, Request: h.request,
	})
}

func (p *Pool) storeSession(name string) {
	s := p.sessions[name]
	if !p.durable || s == nil {
		return
	}
	p.put(sessionKey(name), sessionRecord{
		Name: name, Mode: s.mode, Proxy: s.proxy, Group: s.group, Expires: p.time(s.at).UnixMilli(),
	})
}

func (p *Pool) storeCooldown(c *cooldown) {
	if !p.durable {
		return
	}
	p.put(cooldownKey(c.group.key, c.target), cooldownRecord{
		Group: c.group.key, Target: c.target, Strikes: c.strikes,
		Length: c.length.Milliseconds(), Cooling: c.cooling, Until: p.time(c.at).UnixMilli(),
	})
}

func (p *Pool) storeMark(id string) {
	if !p.durable {
		return
	}
	info, ok := p.marks[id]
	if !ok {
		p.changes = append(p.changes, Change{Key: markKey(id)})
		return
	}
	p.put(markKey(id), markRecord{Proxy: id, Mark: info.Mark, By: info.By, Reason: info.Reason, At: info.At})
}

// kindOf splits a key.
func kindOf(key string) (kind, name string) {
	i := strings.IndexByte(key, '/')
	if i < 0 {
		return "", key
	}
	return key[:i+1], key[i+1:]
}
