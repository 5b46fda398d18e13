package early

import (
	"go/parser"
	"go/token"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// late are packages whose import paths sort behind most of the binary's: one
// import of them and the verbs are no longer early.
var late = map[string][]string{
	"../supervise": {"os/exec", "path", "path/filepath", "runtime/debug", "regexp", "text/", "net", "golang.org/", "gopkg.in/", "go.", "k8s.io/"},
	"../forward":   {"net/http/httputil", "os/exec", "path", "path/filepath", "runtime/debug", "regexp", "text/", "golang.org/", "gopkg.in/", "go.", "k8s.io/"},
}

func TestVerbsImportNothingLate(t *testing.T) {
	for dir, refused := range late {
		files, err := filepath.Glob(filepath.Join(dir, "*.go"))
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %v, %v", dir, files, err)
		}
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ImportsOnly)
			if err != nil {
				t.Fatal(err)
			}
			for _, spec := range parsed.Imports {
				path, err := strconv.Unquote(spec.Path.Value)
				if err != nil {
					t.Fatal(err)
				}
				for _, prefix := range refused {
					if path == prefix || (strings.HasSuffix(prefix, "/") || strings.HasSuffix(prefix, ".")) && strings.HasPrefix(path, prefix) {
						t.Errorf("%s imports %s, and is no longer early", file, path)
					}
				}
			}
		}
	}
}
