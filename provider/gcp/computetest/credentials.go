package computetest

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"net/http"
	"strings"
)

// key is a service account's.
type key struct{ pem []byte }

func newKey() (*key, error) {
	private, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return nil, err
	}
	der, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		return nil, err
	}
	return &key{pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})}, nil
}

// Credentials is the JSON key of a service account whose tokens the stand-in
// gives out and accepts: the value of credentials_file, once in a file.
func (s *Server) Credentials() []byte {
	content, _ := json.Marshal(map[string]string{ // strings only: it can't fail
		"type": "service_account", "project_id": s.config.Project, "private_key_id": "test",
		"private_key": string(s.key.pem), "client_email": "egress@" + s.config.Project + ".iam.gserviceaccount.com",
		"client_id": "1", "token_uri": s.http.URL + "/token",
	})
	return content
}

// token exchanges a signed assertion for an access token.
func (s *Server) token(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls = append(s.calls, "token")
	if f := s.fault("token", r); f != nil {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(f.Status)
		_ = json.NewEncoder(w).Encode(map[string]string{"error": f.Reason, "error_description": f.Message})
		return
	}
	if err := r.ParseForm(); err != nil || strings.Count(r.PostForm.Get("assertion"), ".") != 2 {
		s.problem("a token without an assertion").write(w)
		return
	}
	token := "token-" + rand.Text()
	s.tokens[token] = true
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(map[string]any{"access_token": token, "token_type": "Bearer", "expires_in": 3600})
}

// Revoke makes all tokens worthless.
func (s *Server) Revoke() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.tokens)
}
