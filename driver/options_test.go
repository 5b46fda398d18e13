package driver

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"testing"
)

// The schema has every key that an adapter decodes: a key that is missing here
// can't be set by anybody.
func TestProviderKeysCoverTheAdapters(t *testing.T) {
	known := make(map[string]bool)
	var note func([]key)
	note = func(keys []key) {
		for _, key := range keys {
			known[key.name] = true
			note(key.keys)
		}
	}
	note(providerKeys)
	found := 0
	for _, file := range adapterSources(t) {
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(parsed, func(node ast.Node) bool {
			field, ok := node.(*ast.Field)
			if !ok || field.Tag == nil {
				return true
			}
			tag, _ := strconv.Unquote(field.Tag.Value)
			name, _, _ := strings.Cut(reflect.StructTag(tag).Get("option"), ",")
			if name != "" && name != "-" {
				found++
				if !known[name] {
					t.Errorf("%s decodes %q, which driver/options.go doesn't declare", file, name)
				}
			}
			return true
		})
	}
	if found < 5 {
		t.Errorf("only %d keys were found", found)
	}
}

func adapterSources(t *testing.T) []string {
	t.Helper()
	var files []string
	err := filepath.WalkDir("../provider", func(path string, entry os.DirEntry, err error) error {
		if err == nil && strings.HasSuffix(path, ".go") && !strings.HasSuffix(path, "_test.go") {
			files = append(files, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}
