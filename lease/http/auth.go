package http

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync/atomic"
)

// Scope is what a token allows.
type Scope string

// The scopes. Admin includes the others.
const (
	// ScopeRead lists leases, proxies and cooldowns, without passwords.
	ScopeRead Scope = "read"
	// ScopeLease acquires, renews, reports and releases.
	ScopeLease Scope = "lease"
	// ScopeAdmin freezes, drains and unfreezes.
	ScopeAdmin Scope = "admin"
)

// Tokens are the bearer tokens, read from a file.
type Tokens struct {
	path string
	list atomic.Pointer[[]token]
}

type token struct {
	name   string
	sum    [sha256.Size]byte
	scopes []Scope
}

// LoadTokens reads the file. It holds either one token, which allows
// everything, or JSON: {"name":{"token":"…","scopes":["read","lease"]}}, where
// "sha256" with the hexadecimal hash of the token may stand instead of "token".
func LoadTokens(path string) (*Tokens, error) {
	t := &Tokens{path: path}
	return t, t.Reload()
}

// Reload reads the file again. On an error the tokens stay as they were.
func (t *Tokens) Reload() error {
	data, err := os.ReadFile(t.path)
	if err != nil {
		return fmt.Errorf("token file: %w", err)
	}
	list, err := parseTokens(data)
	if err != nil {
		return fmt.Errorf("token file %s: %w", t.path, err)
	}
	t.list.Store(&list)
	return nil
}

// minToken is the shortest token: 16 characters are 64 bits even when they are
// hexadecimal.
const minToken = 16

// parseTokens never puts a token into its errors.
func parseTokens(data []byte) ([]token, error) {
	text := strings.TrimSpace(string(data))
	if !strings.HasPrefix(text, "{") {
		if len(text) < minToken || strings.ContainsAny(text, " \t\r\n") {
			return nil, fmt.Errorf("want one token of at least %d characters, or JSON", minToken)
		}
		return []token{{name: "default", sum: sha256.Sum256([]byte(text)), scopes: []Scope{ScopeAdmin}}}, nil
	}
	var file map[string]struct {
		Token  string  `json:"token"`
		SHA256 string  `json:"sha256"`
		Scopes []Scope `json:"scopes"`
	}
	decoder := json.NewDecoder(strings.NewReader(text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&file); err != nil {
		return nil, err
	}
	var list []token
	for name, entry := range file {
		t := token{name: name, scopes: entry.Scopes}
		switch {
		case entry.SHA256 != "" && entry.Token == "":
			sum, err := hex.DecodeString(entry.SHA256)
			if err != nil || len(sum) != sha256.Size {
				return nil, fmt.Errorf("token %q: sha256: want 64 hexadecimal digits", name)
			}
			copy(t.sum[:], sum)
		case len(entry.Token) >= minToken && entry.SHA256 == "":
			t.sum = sha256.Sum256([]byte(entry.Token))
		default:
			return nil, fmt.Errorf("token %q: want either a token of at least %d characters or its sha256", name, minToken)
		}
		if len(t.scopes) == 0 {
			return nil, fmt.Errorf("token %q: want at least one of the scopes read, lease, admin", name)
		}
		for _, scope := range t.scopes {
			if scope != ScopeRead && scope != ScopeLease && scope != ScopeAdmin {
				return nil, fmt.Errorf("token %q: scope %q: want read, lease or admin", name, scope)
			}
		}
		list = append(list, t)
	}
	return list, nil
}

// find gives the token's entry. It takes the same time whichever matches.
func (t *Tokens) find(bearer string) *token {
	sum := sha256.Sum256([]byte(bearer))
	var found *token
	list := *t.list.Load()
	for i := range list {
		if subtle.ConstantTimeCompare(sum[:], list[i].sum[:]) == 1 {
			found = &list[i]
		}
	}
	return found
}

func (t *token) allows(scope Scope) bool {
	return slices.Contains(t.scopes, scope) || slices.Contains(t.scopes, ScopeAdmin)
}

type tokenKey struct{}

// authorize lets a request through that has a token with the scope, within its
// rate.
func (s *Server) authorize(scope Scope, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if s.Tokens != nil {
			bearer, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
			t := s.Tokens.find(strings.TrimSpace(bearer))
			if !ok || t == nil {
				s.fail(w, r, errUnauthorized)
				return
			}
			r = r.WithContext(context.WithValue(r.Context(), tokenKey{}, t))
		}
		if err := s.need(r, scope); err != nil {
			s.fail(w, r, err)
			return
		}
		if wait := s.limits.take(r); wait > 0 {
			s.fail(w, r, &rateError{wait})
			return
		}
		next.ServeHTTP(w, r)
	})
}

// need says whether the request's token has the scope.
func (s *Server) need(r *http.Request, scope Scope) error {
	if s.Tokens == nil {
		return nil
	}
	t, _ := r.Context().Value(tokenKey{}).(*token)
	if t == nil || !t.allows(scope) {
		return fmt.Errorf("%w %q", errForbidden, scope)
	}
	return nil
}

// tokenName is the name of the request's token; empty without tokens.
func tokenName(r *http.Request) string {
	if t, ok := r.Context().Value(tokenKey{}).(*token); ok {
		return t.name
	}
	return ""
}
