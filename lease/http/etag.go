package http

import (
	"fmt"
	"hash/fnv"
	"net/http"
	"strings"
)

// notModified gives a list its ETag, and answers 304 when the client has that
// version. The tag counts the changes of the pool; that time passes, so that
// fewer seconds are left, is none: the tag is weak.
func (s *Server) notModified(w http.ResponseWriter, r *http.Request, version uint64) bool {
	if r.Method != http.MethodGet {
		return false
	}
	h := fnv.New32a()
	_, _ = h.Write([]byte(r.URL.RequestURI()))
	tag := fmt.Sprintf(`W/"%s-%x-%x"`, s.etagBase, version, h.Sum32())
	w.Header().Set("ETag", tag)
	w.Header().Set("Cache-Control", "no-cache")
	for candidate := range strings.SplitSeq(r.Header.Get("If-None-Match"), ",") {
		if candidate = strings.TrimSpace(candidate); candidate == tag || candidate == "*" {
			w.WriteHeader(http.StatusNotModified)
			return true
		}
	}
	return false
}
