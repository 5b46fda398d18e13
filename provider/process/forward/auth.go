package forward

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
)

// authenticator knows the credentials that clients must give.
type authenticator struct {
	file string
	want atomic.Pointer[[sha256.Size]byte] // nil asks for nothing
}

func newAuthenticator(c Config) (*authenticator, error) {
	a := &authenticator{file: c.CredentialsFile}
	if c.Username != "" {
		a.set(c.Username, c.Password)
	}
	return a, a.reload()
}

// reload reads the file again. On an error the old credentials stay.
func (a *authenticator) reload() error {
	if a.file == "" {
		return nil
	}
	content, err := os.ReadFile(a.file)
	if err != nil {
		return fmt.Errorf("credentials file: %w", err)
	}
	var credentials struct {
		Username string `json:"username"`
		Password string `json:"password"`
	}
	// The error of json could quote the content, and so the password.
	if json.Unmarshal(content, &credentials) != nil {
		return fmt.Errorf(`credentials file %s: want {"username":"…","password":"…"}`, a.file)
	}
	if credentials.Username == "" || strings.Contains(credentials.Username, ":") {
		return fmt.Errorf("credentials file %s: want a username without a colon", a.file)
	}
	a.set(credentials.Username, credentials.Password)
	return nil
}

func (a *authenticator) set(username, password string) {
	sum := sha256.Sum256([]byte(username + ":" + password))
	a.want.Store(&sum)
}

var errNoBasic = errors.New("want Basic credentials")

// check compares digests, so that the time taken tells nothing about either the
// content or the length of the credentials.
func (a *authenticator) check(header http.Header) bool {
	want := a.want.Load()
	if want == nil {
		return true
	}
	given, err := basic(header.Get("Proxy-Authorization"))
	sum := sha256.Sum256(given)
	equal := subtle.ConstantTimeCompare(sum[:], want[:])
	return equal == 1 && err == nil
}

// basic is the decoded user and password of a header of RFC 7617.
func basic(header string) ([]byte, error) {
	scheme, encoded, ok := strings.Cut(header, " ")
	if !ok || !strings.EqualFold(scheme, "Basic") {
		return nil, errNoBasic
	}
	given, err := base64.StdEncoding.DecodeString(strings.TrimLeft(encoded, " "))
	if err != nil {
		return nil, errNoBasic
	}
	return given, nil
}
