package http

import (
	"embed"
	"net/http"
)

//go:embed page.html page.css page.js
var pageFiles embed.FS

// page adds the status page. It has no data of its own: the script asks the API
// with a token that the person types in, so it needs none to be shown.
func (s *Server) page() {
	serve := func(pattern, name, mediaType string) {
		data, err := pageFiles.ReadFile(name)
		if err != nil {
			panic(err) // it is in the binary
		}
		s.mux.HandleFunc(pattern, func(w http.ResponseWriter, _ *http.Request) {
			h := w.Header()
			h.Set("Content-Type", mediaType)
			h.Set("Content-Security-Policy", "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'")
			h.Set("X-Content-Type-Options", "nosniff")
			h.Set("Cache-Control", "no-cache")
			_, _ = w.Write(data)
		})
	}
	serve("GET /{$}", "page.html", "text/html; charset=utf-8")
	serve("GET /page.css", "page.css", "text/css; charset=utf-8")
	serve("GET /page.js", "page.js", "text/javascript; charset=utf-8")
}
